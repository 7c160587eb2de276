"""Questions that people ask of data-parallel training, each answered by a command.

python -m lessons               lists them
python -m lessons averaging     runs one: a table, a plot, and what it found
"""
