"""What is known of a model: what changes its layers is in their hash, and what does not is not."""

import keras
import toys

from towers.runs import definition


def layers(*given) -> str:
    made = toys.on_cpu(lambda: keras.Sequential([keras.Input((3,)), *given]))
    return definition.layers(made)["sha256"]


def test_names_that_keras_makes_up_are_not_in_it():
    """A notebook that runs a cell again builds `dense_2` where it had `dense`."""
    one, same, other = (
        layers(keras.layers.Dense(2), keras.layers.Dense(units)) for units in (4, 4, 5)
    )
    assert one == same != other


def test_arguments_and_which_weights_train_are():
    def of(activation, rate, trainable):
        dense = keras.layers.Dense(3, activation=activation)
        dense.trainable = trainable
        return layers(dense, keras.layers.Dropout(rate))

    given = [("relu", 0.2, True), ("tanh", 0.2, True), ("relu", 0.5, True), ("relu", 0.2, False)]
    assert len({of(*each) for each in given}) == 4
