"""The state that is not trained: one set of batch-norm statistics, and the draws of dropout."""

import keras
import numpy as np
import pytest
import toys

from towers import model_state


def normalizing(momentum, **arguments):
    """Batch norm of one feature, so that the statistics can be computed by hand."""
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([1]),
                keras.layers.BatchNormalization(momentum=momentum, name="norm", **arguments),
            ]
        )
    )


# Two microbatches: mean 10 and variance 1, mean 20 and variance 4.
IMAGES = toys.column(9.0, 11.0, 18.0, 22.0)


def statistics_after_one_step(momentum, num_towers):
    model = normalizing(momentum)
    step = toys.Step(model, num_towers=num_towers, microbatch=2, loss=toys.output_itself)
    step(IMAGES, toys.labels_for(IMAGES))
    norm = model.get_layer("norm")
    return norm.moving_mean.numpy().item(), norm.moving_variance.numpy().item()


@pytest.mark.pitfall(23, 32)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_two_microbatches_leave_the_mean_of_their_statistics(num_towers):
    assert statistics_after_one_step(0.0, num_towers) == (15.0, 2.5)
    # From mean 0 and variance 1: (0 + 15) / 2 and (1 + 2.5) / 2. One after the other, the
    # microbatches would leave (0 / 2 + 10 / 2) / 2 + 20 / 2 = 12.5.
    assert statistics_after_one_step(0.5, num_towers) == (7.5, 1.75)


def test_each_microbatch_is_normalized_by_its_own_statistics():
    # "Ghost" batch norm: what a microbatch computes is what it computes alone.
    images, labels = toys.batch(8)

    def losses(size, part=slice(None)):
        step = toys.Step(toys.normalized("float64"), microbatch=size)
        return step(images[part], labels[part]).losses.numpy()

    halves = losses(4)
    for half, part in enumerate((slice(0, 4), slice(4, 8))):
        assert halves[half] == pytest.approx(losses(4, part).item(), rel=1e-6)
    assert abs(losses(8).item() - halves.mean()) > 1e-3


def test_frozen_layers_keep_their_last_bit():
    # (x + x + x) / 3 is not x for every x.
    model = toys.classifier(hidden=50)
    frozen = model.get_layer("hidden")
    frozen.trainable = False
    before = frozen.get_weights()
    toys.Step(model, microbatch=2)(*toys.batch(6, [3]))
    for now, then in zip(frozen.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


PIXELS = 16
# Dropout doubles what it keeps, so the kept half-powers of two add up to a number whose binary
# digits are the mask.
BINARY = np.tile((2.0 ** np.arange(PIXELS) / 2).astype(np.float32), [4, 1])


def dropout(seed):
    return toys.on_cpu(
        lambda: keras.Sequential(
            [
                keras.Input([PIXELS]),
                keras.layers.Dropout(0.5, seed=seed, name="drop"),
                keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"),
            ]
        )
    )


def masks(num_towers, seed=1, steps=3):
    """The mask of each microbatch of each step, as a number; the weights stay at 1."""
    step = toys.Step(
        dropout(seed),
        keras.optimizers.SGD(0.0),
        num_towers=num_towers,
        microbatch=1,
        loss=toys.output_itself,
    )
    return [step(BINARY, toys.labels_for(BINARY)).losses.numpy().tolist() for _ in range(steps)]


def test_dropout_draws_again_for_each_microbatch_and_step():
    drawn = np.ravel(masks(1))
    assert len(set(drawn)) == len(drawn) == 12
    assert set(drawn % 1) == {0.0} and drawn.min() > 0 and drawn.max() < 2**PIXELS


@pytest.mark.parametrize("num_towers", [2, 4])
def test_dropout_draws_the_same_on_any_number_of_towers(num_towers):
    assert masks(num_towers) == masks(1)


def test_layers_of_neighbouring_seeds_share_no_draw():
    assert not set(np.ravel(masks(1, seed=1))) & set(np.ravel(masks(1, seed=2)))


def test_statistics_are_no_draw_counters():
    assert not any(map(model_state.is_draw_counter, normalizing(0.0).non_trainable_variables))
