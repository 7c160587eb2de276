"""One task in four systems, a whole program each: how long it is, and what a kill changes.

The programs are complete and stand alone: they are what a person writes. `python -m
benchmarks.own_task` runs and compares them.
"""
