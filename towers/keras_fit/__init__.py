"""Towers beneath Keras's own `fit`, `evaluate` and `predict`: `towers.distribute`."""
