"""The commands: their settings, and how a run is made from them.

Importing it does not import TensorFlow: a typo is answered at once.
"""
