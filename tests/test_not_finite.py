"""Losses and gradients that are not finite: nothing is applied, and the error says where it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import towers
from towers import losses, not_finite

TOWERS, BATCH = 2, 8


def everything(made: towers.Trainer) -> list[np.ndarray]:
    """All variables of the state."""
    state = made.state
    variables = [*state.model.variables, *state.optimizer.variables]
    values = [*(v.value for v in variables), *state.averages, state.step, state.examples_seen]
    return [value.numpy() for value in values]


def assert_untouched(made: towers.Trainer, before: list[np.ndarray]) -> None:
    for now, then in zip(everything(made), before, strict=True):
        np.testing.assert_array_equal(now, then)


def batch_with(example: int, value: float):
    images, labels = toys.batch(BATCH, [3])
    images[example] = value
    return images, labels


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: keras.optimizers.AdamW(0.1),
    "clipped": lambda: keras.optimizers.Adam(0.1, global_clipnorm=1.0),
    "averaged": lambda: keras.optimizers.Lion(0.1, use_ema=True, ema_overwrite_frequency=2),
}


@pytest.mark.parametrize(
    ("example", "tower", "value", "optimizer"),
    [
        (1, 0, np.nan, "sgd"),
        (5, 1, np.inf, "sgd"),
        (5, 1, np.nan, "adamw"),
        (1, 0, np.inf, "clipped"),
        (5, 1, np.inf, "averaged"),
    ],
)
def test_a_loss_stops_the_step_and_names_its_tower(optimizer, value, example, tower):
    made = toys.trainer(
        toys.classifier(), OPTIMIZERS[optimizer](), num_towers=TOWERS, global_batch_size=BATCH,
        num_microbatches=4, weight_decay=0.1, moving_average_decay=0.9,
    )  # fmt: skip
    for seed in range(3):
        made.train_step(*toys.batch(BATCH, [3], seed=seed))
    before = everything(made)
    with pytest.raises(towers.NotFiniteError) as caught:
        made.train_step(*batch_with(example, value))
    error = caught.value
    assert (error.step, error.tower) == (4, tower)
    assert str(error) == f"step 4, tower {tower}: the loss (cross_entropy) is NaN or Inf"
    assert_untouched(made, before)
    made.train_step(*toys.batch(BATCH, [3]))  # the trainer is as good as before
    assert int(made.state.step) == 4


def test_the_term_of_the_loss_is_named():
    made = toys.trainer(toys.classifier(), global_batch_size=BATCH, weight_decay=0.1)
    made.state.model.trainable_variables[0].assign(tf.fill([3, 5], 1e30))  # its square overflows
    with pytest.raises(towers.NotFiniteError, match=r"tower 0: the loss \(weight_decay/hidden\)"):
        made.train_step(*toys.batch(BATCH, [3]))


def root_of_output(labels, outputs):
    """A loss that is 0 at 0, where its gradient is infinite."""
    return tf.sqrt(outputs[:, 0])


def test_a_gradient_is_found_where_the_loss_is_finite():
    made = toys.trainer(
        toys.linear(1.0), num_towers=TOWERS, global_batch_size=4, loss=root_of_output
    )
    before = everything(made)
    images = toys.column(1.0, 1.0, 1.0, 0.0)
    with pytest.raises(towers.NotFiniteError) as caught:
        made.train_step(images, toys.labels_for(images))
    weight = made.state.model.trainable_variables[0].path
    assert str(caught.value) == f"step 1, tower 1: the gradient of {weight} is NaN or Inf"
    assert_untouched(made, before)


def test_a_sum_that_overflows_is_that_of_all_towers():
    made = toys.trainer(
        toys.linear(0.0), num_towers=TOWERS, global_batch_size=2, gradient_reduction="sum",
        loss=toys.output_itself,
    )  # fmt: skip
    images = toys.column(2.5e38, 2.5e38)
    with pytest.raises(towers.NotFiniteError) as caught:
        made.train_step(images, toys.labels_for(images))
    assert str(caught.value) == (
        "step 1, all towers together: the reduced gradient, or its norm, is NaN or Inf"
    )
    assert caught.value.tower is None


def test_a_norm_that_overflows_is_not_clipped_to_nothing():
    """Keras would scale by 1 / inf, and make NaN of it."""
    made = toys.trainer(
        toys.linear(0.0), keras.optimizers.SGD(0.1, global_clipnorm=1.0), global_batch_size=1,
        loss=toys.output_itself,
    )  # fmt: skip
    images = toys.column(1e25)
    with pytest.raises(towers.NotFiniteError, match="all towers together: .*, or its norm, is NaN"):
        made.train_step(images, toys.labels_for(images))
    assert made.state.model.trainable_variables[0].numpy() == 0


def test_batch_norm_and_kept_apart_statistics_stay_as_they_were():
    model = toys.normalized()
    made = toys.trainer(
        model, num_towers=TOWERS, global_batch_size=4, batch_norm_statistics="each",
        weight_decay=0.0,
    )  # fmt: skip
    made.train_step(*toys.batch(4))
    before = made.state.parts_sha256()
    images, labels = toys.batch(4)
    images[3, 0, 0, 0] = np.nan
    with pytest.raises(towers.NotFiniteError, match="tower 1"):
        made.train_step(images, labels)
    assert made.state.parts_sha256() == before


def test_the_rows_of_an_embedding_are_looked_at():
    layers = [
        keras.Input([], dtype="int32"),
        keras.layers.Embedding(4, 2, embeddings_initializer="ones", name="rows"),
    ]
    model = toys.on_cpu(lambda: keras.Sequential(layers))
    made = toys.trainer(model, global_batch_size=2, loss=lambda _, y: tf.sqrt(y[:, 0] - 1.0))
    before = everything(made)
    with pytest.raises(towers.NotFiniteError, match="the gradient of .*rows/embeddings is"):
        made.train_step(np.array([1, 3]), np.zeros(2, np.int64))
    assert_untouched(made, before)


class TestLossScaling:
    def scaled(self):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=2.0**15
        )
        return toys.trainer(toys.small_cifarnet("float16"), optimizer, global_batch_size=4)

    def test_an_overflow_of_the_scaled_gradient_is_the_optimizers_matter(self):
        made = self.scaled()
        made.state.optimizer.dynamic_scale.assign(2.0**40)
        weights = [w.numpy() for w in made.state.model.trainable_variables]
        made.train_step(*toys.batch(4))
        for weight, then in zip(made.state.model.trainable_variables, weights, strict=True):
            np.testing.assert_array_equal(weight.numpy(), then)
        assert float(made.state.optimizer.dynamic_scale) == 2.0**39

    def test_a_gradient_that_no_scale_makes_finite_stops_the_run(self):
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1), initial_scale=4.0
        )
        made = toys.trainer(toys.linear(1.0), optimizer, global_batch_size=1, loss=root_of_output)
        images = toys.column(0.0)
        for _ in range(2):  # 4 and 2 are halved
            made.train_step(images, toys.labels_for(images))
        with pytest.raises(towers.NotFiniteError, match="step 3, tower 0: the gradient of"):
            made.train_step(images, toys.labels_for(images))
        assert made.state.model.trainable_variables[0].numpy() == 1

    def test_a_loss_that_is_not_finite_is_not(self):
        made = self.scaled()
        bias = made.state.model.trainable_variables[-1]
        bias.assign(tf.fill(bias.shape, 1e6))  # infinite in float16
        before = everything(made)
        with pytest.raises(towers.NotFiniteError, match=r"step 1, tower 0: the loss \(cross_entro"):
            made.train_step(*toys.batch(4))
        assert_untouched(made, before)


def test_weights_of_examples_and_xla_change_nothing_of_it():
    made = toys.trainer(toys.classifier(), global_batch_size=BATCH, jit_compile=True)
    images, labels = batch_with(2, np.nan)
    with pytest.raises(towers.NotFiniteError, match="step 1, tower 0"):
        made.train_step(images, labels, np.ones(BATCH, np.float32))


def test_another_error_of_tensorflow_is_left_as_it_is():
    def failing(labels, outputs):
        with tf.control_dependencies([tf.debugging.assert_negative(labels, "of the loss")]):
            return tf.identity(losses.cross_entropy(labels, outputs))

    made = toys.trainer(toys.classifier(), global_batch_size=BATCH, loss=failing)
    with pytest.raises(tf.errors.InvalidArgumentError, match="of the loss"):
        made.train_step(*toys.batch(BATCH, [3]))


def test_of_many_names_the_first_few_are_said():
    assert not_finite._few(["a", "b", "c"]) == "a, b, c"
    assert not_finite._few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
