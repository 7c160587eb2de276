"""When inputs may be converted to a narrow type before they are copied to a tower."""

import keras
import pytest
import tensorflow as tf

from towers import networks
from towers.support import first_layers


def dense(dtype: str = "mixed_bfloat16", **options) -> keras.layers.Dense:
    return keras.layers.Dense(4, dtype=dtype, **options)


def functional(*readers) -> keras.Model:
    """Each reads the input; the model adds what they return."""
    inputs = keras.Input((4,))
    outputs = [reader(inputs) for reader in readers]
    return keras.Model(inputs, keras.layers.Add()(outputs) if len(outputs) > 1 else outputs[0])


def of_two_inputs(first, second) -> keras.Model:
    inputs = {"a": keras.Input((4,), name="a"), "b": keras.Input((4,), name="b")}
    added = keras.layers.Add()([first(inputs["a"]), second(inputs["b"])])
    return keras.Model(inputs, added)


class WithACallOfItsOwn(keras.Model):
    """Functional by its inputs and outputs, and yet its `call` may do anything with the input."""

    def call(self, inputs):
        return super().call(inputs / 3.0)


def overridden() -> keras.Model:
    inputs = keras.Input((4,))
    return WithACallOfItsOwn(inputs, dense()(inputs))


class ThatScalesFirst(keras.layers.Dense):
    """Its `__call__` reads the float32 input."""

    def __call__(self, inputs, **kwargs):
        return super().__call__(inputs / 3.0, **kwargs)


def that_returns_its_input_too() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, [dense()(inputs), inputs])


def around(inner: keras.Model) -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, inner(inputs))


def of_type(dtype: str) -> keras.Model:
    inputs = keras.Input((4,), dtype=dtype)
    return keras.Model(inputs, dense()(inputs))


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_this_projects_own_networks_convert_their_images_first(name):
    model = networks.build(name, (32, 32, 3), 10, compute_dtype="bfloat16")
    assert first_layers.inputs_type(model) == tf.bfloat16


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: functional(dense()), tf.bfloat16),
        (lambda: functional(dense("mixed_float16"), dense("mixed_float16")), tf.float16),
        (lambda: keras.Sequential([keras.Input((4,)), dense(), dense("float32")]), tf.bfloat16),
        (lambda: functional(keras.Sequential([dense()])), tf.bfloat16),
        (lambda: of_two_inputs(dense(), dense()), tf.bfloat16),
        # A layer that computes in float32 reads the whole number.
        (lambda: functional(dense("float32")), None),
        (lambda: functional(dense(), dense("float32")), None),
        (lambda: functional(dense(), dense("mixed_float16")), None),
        (lambda: of_two_inputs(dense(), dense("float32")), None),
        (lambda: keras.Sequential([keras.Input((4,)), dense("float32"), dense()]), None),
        (lambda: functional(keras.Sequential([dense("float32"), dense()])), None),
        # And so does what is not a layer, or a layer that takes inputs as they are.
        (lambda: functional(dense(), lambda inputs: keras.ops.multiply(inputs, 3.0)), None),
        (lambda: functional(dense(autocast=False)), None),
        (overridden, None),
        (
            lambda: keras.Sequential(
                [keras.Input((4,)), ThatScalesFirst(4, dtype="mixed_bfloat16")]
            ),
            None,
        ),
        # It leaves the model as it came.
        (that_returns_its_input_too, None),
        (lambda: around(that_returns_its_input_too()), None),
        # Keras first converts to the input's own type.
        (lambda: of_type("bfloat16"), tf.bfloat16),
        (lambda: of_type("float16"), None),
        (lambda: of_type("int32"), None),
        (lambda: keras.Sequential([]), None),
    ],
)
def test_the_type_that_all_first_layers_convert_to(model, expected):
    assert first_layers.inputs_type(model()) == expected
