"""The commands: their settings, and how a run is made from them.

Beside the two packages, because it uses both; and importing it does not import TensorFlow: a typo
is answered at once.
"""
