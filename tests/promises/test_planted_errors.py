"""Errors of data-parallel training, planted one at a time: equality sees each at its first step.

Of the kinds that TrainCheck (Jiang et al., OSDI 2025) and TTrace (arXiv:2506.09280) collect from
reports. A run on several towers has the error, one on a single tower does not; both write a hash of
the whole state at each step, and training goes on as if nothing had happened.
"""

import functools

import fit_program
import keras
import pytest
import scripts
import tensorflow as tf
import toys

import towers
from input_pipeline import arrays
from towers import gradients, microbatch, model_state, moving_averages, step
from towers.runs import callbacks, checkpoints, sources

BATCH, SIZE, STEPS, RESUMED_AT, CLIP = 24, 4, 5, 2, 0.05
X, Y = (part[:60] for part in fit_program.data())


def hashes(folder, num_towers: int, until: int = STEPS) -> dict[int, str]:
    """The hash of the state after each step of a run, which goes on where it stands."""
    made = toys.on_cpu(fit_program.model)  # with weight decay, batch norm and dropout
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=CLIP), made.loss)
    towers.distribute(made, num_towers, microbatch_size=SIZE)
    chain = [
        callbacks.LearningRate(lambda seen: 0.1 / (1 + seen / 100)),
        callbacks.MovingAverages(made, 0.9),
        callbacks.Verify(),
    ]
    towers.Run(folder, made).fit(
        arrays.batches(X, Y), batch_size=BATCH, epochs=9, max_steps=until, callbacks=chain,
        verbose=0,
    )  # fmt: skip
    return {line["step"]: line["state_sha256"] for line in scripts.hash_lines(folder)}


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    return hashes(tmp_path_factory.mktemp("right"), 1)


def changed(owner, name: str, change):
    """Plants an error: `change(function)(...)` takes the place of a function."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        function = getattr(owner, name)
        patch.setattr(owner, name, functools.wraps(function)(change(function)))

    return plant


def of_last(change):
    """The gradients of the second tower's last microbatch are changed before they are added."""

    def planted(add_up):
        def function(of_microbatches, own, count):
            if own.start:
                *others, last = of_microbatches
                of_microbatches = [*others, [change(gradient) for gradient in last]]
            return add_up(of_microbatches, own, count)

        return function

    return changed(gradients, "sum_over_share", planted)


def on_second_tower(weights_of=lambda _, weights: weights, x_of=lambda x: x):
    """The passes of the later microbatches, m >= 3, have other weights or inputs."""

    def planted(backward):
        def function(self, weights, state, draw, batch, scale):
            others = [*weights_of(self.model, weights), x_of(batch[0])]
            pairs = zip(others, [*weights, batch[0]], strict=True)
            *weights, x = [tf.where(draw >= 3, other, one) for other, one in pairs]
            return backward(self, weights, state, draw, (x, *batch[1:]), scale)

        return function

    return changed(microbatch.Microbatch, "_backward", planted)


def stale(model, _):
    with tf.init_scope():
        return [variable.numpy() for variable in model.trainable_variables]


def decay_of_one(loss):
    def function(self, weights, state, draw, batch):
        forward = loss(self, weights, state, draw, batch)
        decay = 1e-3 * tf.reduce_sum(weights[0] ** 2)
        return forward._replace(loss=forward.loss - tf.where(draw >= 3, decay, 0.0))

    return function


def clipped_before(add_up):
    def function(of_microbatches, own, count):
        clipped = [tf.clip_by_global_norm(one, CLIP)[0] for one in of_microbatches]
        return add_up(clipped, own, count)

    return function


def forgets_momentum(restore):
    def function(state, folder):
        restore(state, folder)
        for variable in state.model.optimizer.variables[2:]:
            variable.assign(tf.zeros_like(variable))

    return function


# Name: (how it is planted, towers, the first step that differs). Where the step is beyond
# RESUMED_AT, the run is continued there by a second one.
ERRORS = {
    "one microbatch's gradient is not reduced": (of_last(lambda g: g * 0), 2, 1),
    "one is reduced twice": (of_last(lambda g: g * 2), 2, 1),
    "the sum is divided by the towers": (
        changed(gradients, "over", lambda over: lambda gradient, _: over(gradient, 2)), 2, 1,
    ),
    "a tower's mean counts as another's that has more": (of_last(lambda g: g * 1.5), 4, 1),
    "each microbatch's gradient is clipped, not the mean": (
        changed(gradients, "sum_over_share", clipped_before), 2, 1,
    ),
    "one tower has stale weights": (on_second_tower(stale), 2, 2),
    "one tower reads the first tower's examples": (
        on_second_tower(x_of=lambda x: X[: x.shape[0]]), 2, 1,
    ),
    "one tower computes with narrower inputs": (
        on_second_tower(x_of=lambda x: tf.cast(tf.cast(x, tf.bfloat16), tf.float32)), 2, 1,
    ),
    "weight decay is in one tower's loss only": (
        changed(microbatch.Microbatch, "_loss", decay_of_one), 2, 1,
    ),
    "towers share the draws of dropout": (
        changed(step, "_number", lambda number: lambda m: number(m % 3)), 2, 1,
    ),
    "dropout draws the same in each step": (
        lambda patch: patch.setattr(model_state, "is_draw_counter", lambda variable: False), 2, 1,
    ),
    "batch norm keeps the first tower's statistics": (
        changed(
            step.Program, "_changes",
            lambda changes: lambda self, forwards, weights: changes(
                self, [forwards[0]] * len(forwards), weights
            ),
        ), 2, 1,
    ),
    "each tower updates the moving averages": (
        changed(
            moving_averages, "update",
            lambda update: lambda *given: [update(*given), update(*given)],
        ), 2, 1,
    ),
    "the rate is that of more examples": (
        changed(
            callbacks.LearningRate, "__init__",
            lambda init: lambda self, rate: init(self, lambda seen: rate(2 * seen)),
        ), 2, 2,
    ),
    "a resumed run forgets its momentum": (
        changed(checkpoints, "restore", forgets_momentum), 2, RESUMED_AT + 1,
    ),
    "a resumed run begins its epoch again": (
        changed(
            sources.Epochs, "batches",
            lambda batches: lambda self, first, last: batches(self, 0, last),
        ), 2, RESUMED_AT + 1,
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", ERRORS)
def test_is_seen_at_its_first_step(name, right, tmp_path, monkeypatch):
    plant, num_towers, first = ERRORS[name]
    if first > RESUMED_AT:
        assert hashes(tmp_path, num_towers, RESUMED_AT) == dict([*right.items()][: RESUMED_AT + 1])
    plant(monkeypatch)
    result = hashes(tmp_path, num_towers)
    assert min(at for at in right if result[at] != right[at]) == first


@pytest.mark.long
def test_without_an_error_nothing_is_seen(right, tmp_path):
    assert len(right) == STEPS + 1
    assert hashes(tmp_path / "whole", 4) == right
    hashes(tmp_path / "resumed", 3, RESUMED_AT)
    assert hashes(tmp_path / "resumed", 2) == right


def test_the_page_has_them():
    page = (scripts.ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    rows = [f"| {name} | {first} |" for name, (_, _, first) in ERRORS.items()]
    assert "\n".join(rows) in page
