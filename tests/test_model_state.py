"""The state that is not trained: one set of batch-norm statistics, and the draws of dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf
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


def statistics_after_one_step(model, policy, num_towers):
    run = toys.trainer(
        model,
        num_towers=num_towers,
        global_batch_size=4,
        num_microbatches=2,
        batch_norm_statistics=policy,
        loss=toys.output_itself,
    )
    run.train_step(IMAGES, toys.labels_for(IMAGES))
    norm = model.get_layer("norm")
    return norm.moving_mean.numpy().item(), norm.moving_variance.numpy().item()


@pytest.mark.pitfall(23, 32)
@pytest.mark.parametrize("num_towers", [1, 2])
@pytest.mark.parametrize(
    "policy, expected",
    [
        ("mean", (15.0, 2.5)),
        ("first", (10.0, 1.0)),
        ("last", (20.0, 4.0)),
        ("each", (15.0, 2.5)),  # what the model holds: one set
    ],
)
def test_two_microbatches_leave_one_set_of_statistics(policy, expected, num_towers):
    assert statistics_after_one_step(normalizing(0.0), policy, num_towers) == expected


@pytest.mark.pitfall(23, 32)
def test_every_microbatch_starts_from_the_same_statistics():
    # From mean 0 and variance 1: (0 + 15) / 2 and (1 + 2.5) / 2. One after the other, the
    # microbatches would leave (0 / 2 + 10 / 2) / 2 + 20 / 2 = 12.5.
    assert statistics_after_one_step(normalizing(0.5), "mean", 1) == (7.5, 1.75)


@pytest.mark.pitfall(23, 32)
@pytest.mark.parametrize("num_towers", [1, 2])
def test_each_microbatch_goes_on_from_its_own_statistics(num_towers):
    model = normalizing(0.5)
    run = toys.trainer(
        model,
        num_towers=num_towers,
        global_batch_size=4,
        num_microbatches=2,
        batch_norm_statistics="each",
        loss=toys.output_itself,
    )
    # Momentum 0.5 from mean 0 and variance 1, toward 10 and 1, and toward 20 and 4.
    for means, variances in [([5.0, 10.0], [1.0, 2.5]), ([7.5, 15.0], [1.0, 3.25])]:
        run.train_step(IMAGES, toys.labels_for(IMAGES))
        mean, variance = (values.numpy()[:, 0] for values in run.state.statistics_of_each)
        np.testing.assert_array_equal(mean, means)
        np.testing.assert_array_equal(variance, variances)
        norm = model.get_layer("norm")
        assert norm.moving_mean.numpy() == np.mean(means)
        assert norm.moving_variance.numpy() == np.mean(variances)


def test_each_microbatch_is_normalized_by_its_own_statistics():
    # "Ghost" batch norm: what a microbatch computes is what it computes alone.
    images, labels = toys.batch(8)
    run = toys.trainer(toys.normalized("float64"), global_batch_size=8, num_microbatches=2)
    halves = run.train_step(images, labels).losses["total"].numpy()
    for half, part in enumerate((slice(0, 4), slice(4, 8))):
        alone = toys.trainer(toys.normalized("float64"), global_batch_size=4)
        (loss,) = alone.train_step(images[part], labels[part]).losses["total"].numpy()
        assert halves[half] == pytest.approx(loss, rel=1e-12)
    whole = toys.trainer(toys.normalized("float64"), global_batch_size=8)
    (loss,) = whole.train_step(images, labels).losses["total"].numpy()
    assert abs(loss - halves.mean()) > 1e-3


@pytest.mark.parametrize("policy", ["mean", "first", "last"])
def test_other_policies_keep_no_statistics_apart(policy):
    run = toys.trainer(normalizing(0.5), global_batch_size=2, batch_norm_statistics=policy)
    assert run.state.statistics_of_each == []


@pytest.mark.parametrize("num_microbatches", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.long
def test_the_policy_changes_no_weight(num_microbatches):
    # Training normalizes by the batch's own statistics; the kept ones are for evaluation.
    weights = {}
    for policy in model_state.POLICIES:
        run = toys.trainer(
            toys.small_resnet(),
            num_towers=2,
            global_batch_size=8,
            num_microbatches=num_microbatches,
            batch_norm_statistics=policy,
        )
        run.fit(toys.batch(8, seed=step) for step in range(2))
        parts = run.state.parts_sha256()
        weights[policy] = parts["weights"], parts["model_state"]
    assert len({of_weights for of_weights, _ in weights.values()}) == 1
    states = {policy: state for policy, (_, state) in weights.items()}
    assert len({states["mean"], states["first"], states["last"]}) == 3


@pytest.mark.pitfall(23)
def test_evaluation_uses_the_statistics_that_the_step_left():
    model = normalizing(0.0, epsilon=0.0, scale=False)
    run = toys.trainer(
        toys.beside_zero(model),
        keras.optimizers.SGD(0.0),
        num_towers=2,
        global_batch_size=4,
        loss=toys.output_itself,
    )
    run.train_step(IMAGES, toys.labels_for(IMAGES))
    loss = run.evaluate([(toys.column(25.0), np.zeros(1, np.int64))]).loss
    assert loss == pytest.approx((25 - 15) / np.sqrt(2.5), rel=1e-6)


def combined(parts, policy, model=None):
    return model_state.combine(model or normalizing(0.0), parts, policy)


def test_mean_is_along_the_fixed_tree():
    # (1 + 1e8) + (-1e8 + 1) = 0 in float32, and added one after the other it is 1.
    tower_states = [
        [tf.constant([1.0, 1e8]), tf.constant([1.0, 1.0])],
        [tf.constant([-1e8, 1.0]), tf.constant([1.0, 3.0])],
    ]
    assert [value.numpy() for value in combined(tower_states, "mean")] == [0.0, 1.5]
    assert [value.numpy() for value in combined(tower_states, "each")] == [0.0, 1.5]
    assert [value.numpy() for value in combined(tower_states, "first")] == [1.0, 1.0]
    assert [value.numpy() for value in combined(tower_states, "last")] == [1.0, 3.0]


def test_integers_are_never_averaged():
    parts = [[tf.constant([3, 4]), tf.constant([1.0, 2.0])]]
    count, mean = combined(parts, "mean")
    assert count.dtype == tf.int32 and (count.numpy(), mean.numpy()) == (3, 1.5)


def test_variables_that_the_model_left_alone_stay():
    assert combined([[None, None]], "mean") == [None, None]


def test_unknown_policy_is_refused():
    with pytest.raises(
        ValueError, match="batch_norm_statistics='both': must be one of mean, first, last, each"
    ):
        combined([], "both")


def test_frozen_layers_keep_their_last_bit():
    # (x + x + x) / 3 is not x for every x.
    model = toys.classifier(hidden=50)
    frozen = model.get_layer("hidden")
    frozen.trainable = False
    before = frozen.get_weights()
    run = toys.trainer(model, global_batch_size=6, num_microbatches=3)
    run.train_step(*toys.batch(6, [3]))
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
    run = toys.trainer(
        dropout(seed),
        keras.optimizers.SGD(0.0),
        num_towers=num_towers,
        global_batch_size=4,
        num_microbatches=4,
        loss=toys.output_itself,
    )
    return [
        run.train_step(BINARY, toys.labels_for(BINARY)).losses["total"].numpy().tolist()
        for _ in range(steps)
    ]


def test_dropout_draws_again_for_each_microbatch_and_step():
    drawn = np.ravel(masks(1))
    assert len(set(drawn)) == len(drawn) == 12
    assert set(drawn % 1) == {0.0} and drawn.min() > 0 and drawn.max() < 2**PIXELS


@pytest.mark.parametrize("num_towers", [2, 4])
def test_dropout_draws_the_same_on_any_number_of_towers(num_towers):
    assert masks(num_towers) == masks(1)


def test_layers_of_neighbouring_seeds_share_no_draw():
    assert not set(np.ravel(masks(1, seed=1))) & set(np.ravel(masks(1, seed=2)))


def test_a_random_layer_s_seed_stays_as_it_is():
    model = dropout(seed=1)
    (seed,) = model.non_trainable_variables
    assert model_state.is_draw_counter(seed)
    before = seed.numpy()
    run = toys.trainer(model, global_batch_size=4, loss=toys.output_itself)
    run.train_step(BINARY, toys.labels_for(BINARY))
    np.testing.assert_array_equal(seed, before)


def test_statistics_are_no_draw_counters():
    assert not any(map(model_state.is_draw_counter, normalizing(0.0).non_trainable_variables))


def test_weights_with_dropout_are_the_same_on_any_number_of_towers():
    def dropping():
        layers = toys.classifier().layers
        return keras.Sequential(
            [keras.Input([3]), layers[0], keras.layers.Dropout(0.5, seed=7), layers[1]]
        )

    hashes = set()
    for num_towers in (1, 2, 4):
        run = toys.trainer(
            toys.on_cpu(dropping), num_towers=num_towers, global_batch_size=8, num_microbatches=4
        )
        for seed in range(3):
            run.train_step(*toys.batch(8, [3], seed=seed))
        hashes.add(run.state.sha256())
    assert len(hashes) == 1
