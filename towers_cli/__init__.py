"""The commands: their settings, and how a run is made of them.

Beside the two packages, for it uses both, which know nothing of each other; and importing it does
not import TensorFlow: a slip of the finger is answered at once.
"""
