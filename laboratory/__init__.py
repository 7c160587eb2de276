"""What if the workers did not wait for each other? Real gradients, on a virtual clock.

python -m laboratory                                      lists the update rules and the speeds
python -m laboratory --rule=easgd --workers=16            runs one rule: a table, a plot, a model
python -m laboratory compare --speeds=straggler           runs all rules, side by side

The package itself trains only synchronously, and uses none of this.
"""
