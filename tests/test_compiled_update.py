"""XLA compiles the average and the update where the parameters are on a tower's device.

That is for GPUs; here it is another CPU than the default one.
"""

import logging
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import towers
from benchmarks import gpus
from towers import devices, not_finite
from towers.support import compiled

HERE, THERE = "/CPU:0", "/CPU:1"
TOWERS = ("/CPU:1", "/CPU:2", "/CPU:3", "/CPU:4")
BATCH = 8


def made_on(device, make):
    """What `make()` makes, its variables there."""
    with mock.patch.object(devices, "HOST", device), tf.device(device):
        return make()


def momentum():
    """Not Adam, which makes a whole step of a gradient that is 0 but for rounding."""
    return keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.5)


def trainer(device=THERE, build=toys.normalized, optimizer=momentum, *, num_towers=1, **options):
    defaults = {
        "global_batch_size": BATCH, "num_microbatches": 4, "moving_average_decay": 0.9,
        "jit_compile": True, "learning_rate": lambda seen: 0.01 / (1 + seen),
    }  # fmt: skip
    return towers.Trainer(
        made_on(device, build),
        made_on(device, optimizer),
        towers=TOWERS[:num_towers],
        parameter_device=device,
        **defaults | options,
    )


def programs(made, *batch) -> list[str]:
    """Names of the calls in a step's graph that XLA compiles; names of functions are not unique."""
    graph = made.step_graph(*batch).as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    return [
        node.name
        for node in graph.node
        for attribute in node.attr.values()
        if attribute.func.name in functions
        and functions[attribute.func.name].attr["_XlaMustCompile"].b
    ]


def values(made) -> dict[str, list[np.ndarray]]:
    return {name: [v.numpy() for v in part] for name, part in made.state.parts().items()}


def batches(count=3):
    return [toys.batch(BATCH, seed=seed) for seed in range(count)]


class TestWithParametersOnATower:
    def test_a_step_is_a_program_per_microbatch_one_per_tower_and_two_more(self):
        batch = [tf.constant(array) for array in toys.batch(BATCH)]
        assert len(programs(trainer(num_towers=2), *batch)) == 4 + 2 + 2
        found = programs(trainer(num_microbatches=2, num_towers=2), *batch)
        assert len(found) == 2 + 2  # nothing to add up within a tower
        assert {call.split("/")[0] for call in found} >= {"average_gradients", "update"}
        # Without it, additions begin as gradients come, and none of these are kept longer.
        assert len(programs(trainer(HERE, num_towers=2), *batch)) == 4
        assert programs(trainer(jit_compile=False), *batch) == []

    @pytest.mark.parametrize(
        ("policy", "weighted"),
        [
            ("each", True),
            *(pytest.param(p, False, marks=pytest.mark.long) for p in ("mean", "last")),
        ],
    )
    def test_the_state_is_that_of_an_update_that_is_not_compiled(self, policy, weighted):
        """Up to rounding; and what the step returns, too."""
        after, returned = [], []
        for jit_compile in (False, True):
            made = trainer(jit_compile=jit_compile, batch_norm_statistics=policy)
            for images, labels in batches():
                weights = [np.arange(BATCH) / 4] if weighted else []
                result = made.train_step(images, labels, *weights)
            after.append(values(made))
            returned.append(result)
        assert after[0].keys() == after[1].keys()
        for part in after[0]:
            for plain, by_xla in zip(after[0][part], after[1][part], strict=True):
                np.testing.assert_allclose(by_xla, plain, rtol=1e-4, atol=1e-6, err_msg=part)
        assert [int(count) for count in after[1]["counters"]] == [3, 3 * BATCH]
        plain, by_xla = returned
        np.testing.assert_allclose(by_xla.losses["total"], plain.losses["total"], rtol=1e-4)
        np.testing.assert_array_equal(by_xla.correct, plain.correct)
        for mine, expected in zip(by_xla.gradients, plain.gradients, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-5)

    @pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.long), True])
    def test_the_bits_are_the_same_on_any_number_of_towers(self, weighted):
        """Of the weights no sum is exact: XLA would add up each tower's first."""
        hashes, weights = set(), 10 ** np.random.default_rng(0).uniform(-4, 4, (5, BATCH))
        for num_towers in (1, 2, 3):
            made = trainer(num_towers=num_towers, num_microbatches=BATCH, build=toys.classifier)
            for seed, of_each in enumerate(weights):
                batch = toys.batch(BATCH, [3], seed=seed)
                made.train_step(*batch, *([of_each] if weighted else []))
            hashes.add(made.state.sha256())
        assert len(hashes) == 1

    @pytest.mark.long
    def test_the_bits_of_batch_norm_are_so_too(self):
        hashes = set()
        for num_towers in (1, 2, 4):
            made = trainer(num_towers=num_towers)
            for batch in batches():
                made.train_step(*batch)
            hashes.add(made.state.sha256())
        assert len(hashes) == 1

    def test_a_loss_that_is_not_finite_changes_nothing(self):
        made = trainer(num_towers=2)
        images, labels = toys.batch(BATCH)
        made.train_step(images, labels)
        before = made.state.sha256()
        images[5] = np.nan
        with pytest.raises(not_finite.NotFiniteError, match="step 2, tower 1"):
            made.train_step(images, labels)
        assert made.state.sha256() == before

    @pytest.mark.long
    def test_float16_s_scale_is_taken_off_and_lowered_where_gradients_overflow(self):
        def scaled():
            return keras.optimizers.LossScaleOptimizer(
                keras.optimizers.SGD(0.1), initial_scale=2.0**127
            )

        made = trainer(optimizer=scaled, moving_average_decay=0.0, learning_rate=None)
        before = values(made)["weights"]
        made.train_step(*toys.batch(BATCH))
        for mine, expected in zip(values(made)["weights"], before, strict=True):
            np.testing.assert_array_equal(mine, expected)
        assert float(made.state.optimizer.dynamic_scale) == 2.0**126
        made.state.optimizer.dynamic_scale.assign(4.0)
        taken_off = made.train_step(*toys.batch(BATCH)).gradients
        plain = trainer(moving_average_decay=0.0, jit_compile=False)
        for mine, expected in zip(
            taken_off, plain.train_step(*toys.batch(BATCH)).gradients, strict=True
        ):
            np.testing.assert_allclose(mine, expected, rtol=1e-3, atol=1e-5)

    def test_rows_of_an_embedding_are_not_compiled(self):
        """Each step has another number of them, for which XLA would compile a program."""

        def build():
            words = keras.Input([3], dtype="int32")
            vectors = keras.layers.Embedding(9, 4)(words)
            return keras.Model(words, keras.layers.Dense(2)(keras.layers.Flatten()(vectors)))

        made = trainer(build=build, optimizer=lambda: keras.optimizers.SGD(0.1))
        words = np.arange(BATCH * 3).reshape(BATCH, 3).astype(np.int32) % 9
        labels = np.arange(BATCH) % 2
        calls = programs(made, tf.constant(words), tf.constant(labels))
        assert len(calls) == 4 and all("microbatch" in call for call in calls)
        losses = made.fit([(words, labels), (words % 2, labels)] * 8)
        assert losses[-2] < losses[0] and losses[-1] < losses[1]

    def test_variables_elsewhere_are_updated_where_they_are(self, caplog):
        """Which is slow, as a warning says, and XLA could not reach them."""
        with caplog.at_level(logging.WARNING):
            made = towers.Trainer(
                made_on(HERE, toys.normalized), made_on(HERE, momentum), towers=[THERE],
                global_batch_size=BATCH, parameter_device=THERE, jit_compile=True,
            )  # fmt: skip
        assert "each step copies them" in caplog.text
        assert "and XLA does not compile the update: make" in caplog.text
        before = made.state.sha256()
        made.fit(batches(1))
        assert made.state.sha256() != before

    def test_accumulated_gradients_are_added_as_they_come(self):
        """A program for all of them would keep them all."""
        batch = [tf.constant(array) for array in toys.batch(BATCH)]
        found = programs(trainer(accumulate_gradients=True), *batch)
        assert len(found) == 4 + 2

    def test_what_xla_cannot_compile_is_said_in_a_sentence(self):
        class Printing(keras.optimizers.SGD):
            def update_step(self, gradient, variable, learning_rate):
                tf.print(gradient)
                super().update_step(gradient, variable, learning_rate)

        made = trainer(optimizer=lambda: Printing(0.1))
        with pytest.raises(
            towers.UserError, match="jit_compile=True: XLA cannot compile this model, "
        ):
            made.train_step(*toys.batch(BATCH))


class TestRunner:
    def test_makes_one_program_of_tensors_and_variables(self):
        variable = tf.Variable(2.0)

        @tf.function(autograph=False)
        def step(x):
            def add(value):
                variable.assign_add(value)

            def twice():
                return {"twice": (x + x, None)}

            run = compiled.runner(True, {"x": [x, None]})
            run(add, x)
            return run(twice)

        assert step(tf.constant(3.0)) == {"twice": (6.0, None)}
        assert variable.numpy() == 5.0
        kinds = [
            op.type for op in step.get_concrete_function(tf.constant(3.0)).graph.get_operations()
        ]
        assert "AddV2" not in kinds

    @pytest.mark.parametrize("wanted", [False, True])
    def test_leaves_operations_in_the_graph_where_it_is_not_wanted_or_there_are_rows(self, wanted):
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))

        @tf.function(autograph=False)
        def step(x):
            return compiled.runner(wanted, [x, rows] if wanted else [x])(tf.add, x, x)

        graph = step.get_concrete_function(tf.constant(3.0)).graph
        assert "AddV2" in [op.type for op in graph.get_operations()]


def sum_of_two(x):
    return tf.exp(x) + tf.sin(x)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_program_counts_as_one_launch(jit_compile):
    @tf.function(autograph=False)
    def step(x):
        with tf.device("/GPU:0"):
            return compiled.runner(jit_compile, x)(sum_of_two, x)

    graph = step.get_concrete_function(tf.TensorSpec([])).graph
    assert gpus.launches(graph) == (1 if jit_compile else 3)
