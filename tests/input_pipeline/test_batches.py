"""The order of the data: exact, resumable, and the same whoever reads it."""

import itertools
import os
import time

import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import arrays, batches


@pytest.mark.parametrize("seed", [(0, 0), (1, -1), (2**62, 3), (-(2**63), 2**63 - 1)])
def test_what_is_drawn_is_philox(seed):
    """Else a run would not have the same images on every machine."""
    seed = tf.constant(seed, tf.int64)
    both = (batches.ALGORITHM, "philox")
    for dtype, low, high in ((tf.int32, 0, 9), (tf.int64, None, None), (tf.float32, 0.0, 1.0)):
        one, philox = (
            tf.random.stateless_uniform([99], seed, low, high, dtype, alg=alg) for alg in both
        )
        np.testing.assert_array_equal(one, philox)
    one, philox = (tf.random.experimental.stateless_fold_in(seed, 7, alg=alg) for alg in both)
    np.testing.assert_array_equal(one, philox)


def ids_of(step, num_examples, global_batch_size, seed=0):
    return batches.example_ids(
        step, num_examples=num_examples, global_batch_size=global_batch_size, seed=seed
    ).numpy()


class TestExampleIds:
    def test_epochs_and_seeds_have_unrelated_permutations(self):
        """The cipher behind index_shuffle correlates epochs by 0.8 where its key is weak."""
        n = 4000
        orders = [ids_of(epoch, n, n, seed) for seed in (0, 1) for epoch in range(4)]
        correlations = np.corrcoef(np.stack(orders))
        # Of random orders, correlations have a deviation of 1 / sqrt(n) = 0.016.
        assert np.abs(correlations - np.eye(len(orders))).max() < 0.08

    @pytest.mark.parametrize("step", [2**31 - 1, 2**31, 2**33])
    def test_positions_pass_32_bits(self, step):
        ids = ids_of(step, num_examples=50, global_batch_size=50)
        assert ids.dtype == np.int64 and sorted(ids) == list(range(50))
        assert list(ids) != list(ids_of(step * 50 % 2**32 // 50, 50, 50))  # where 32 bits end up
        np.testing.assert_array_equal(ids_of(tf.constant(step, tf.int64), 50, 50), ids)


class TestOrder:
    def test_half_of_the_images_are_mirrored_and_then_the_others(self):
        order, mirrored = batches.Order(4000, 4000, seed=0), np.zeros((3, 4000), bool)
        for epoch in range(3):
            ids, draws = order(tf.constant(epoch, tf.int64))
            mirrored[epoch, ids] = draws.mirrored
        assert np.mean(mirrored[0]) == pytest.approx(0.5, abs=0.05)
        np.testing.assert_array_equal(mirrored[1:], [~mirrored[0], mirrored[0]])

    def test_augmentation_draws_depend_on_seed_and_step_only(self):
        cases = itertools.product(range(3), range(5))
        assert len({(*batches.augmentation_seed(step, seed=s).numpy(),) for s, step in cases}) == 15

    def test_impossible_ranges_are_refused(self):
        with pytest.raises(ValueError, match="global_batch_size=0"):
            batches.Order(12, 0, seed=0)
        with pytest.raises(ValueError, match="batch_size=0"):
            batches.each_once(10, 0)
        source = arrays.batches(np.arange(12), np.arange(12))
        for first, last in ((7, 6), (-1, 6)):
            with pytest.raises(ValueError, match=f"first_step={first}, last_step={last}"):
                source.batches(first, last, global_batch_size=4)


def test_images_are_spread_out_over_all():
    np.testing.assert_array_equal(arrays.spread_out(10, 4), [0, 3, 6, 9])
    np.testing.assert_array_equal(arrays.spread_out(10, 20), np.arange(10))


class Slow(arrays.Examples):
    """Each batch takes a while, in Python."""

    num_examples, calls = 1000, 0
    parts = np.zeros((1, 2), np.float32), np.zeros(1, np.int32)

    def _rows(self, ids):
        time.sleep(0.02)
        self.calls += 1
        return [np.zeros((len(ids), 2), np.float32), np.zeros(len(ids), np.int32)]


def test_what_reads_ahead_ends_before_python_does():
    """Else the process was aborted now and then: TensorFlow's threads call Python as it ends."""
    slow = Slow()
    reading = batches.Source(slow, "0").batches(0, 9000, global_batch_size=8)
    next(reading)
    batches._close_all()  # as Python calls it at its end
    made = slow.calls
    time.sleep(0.3)
    assert slow.calls <= made + 2 * os.cpu_count()  # what was under way
    assert list(reading) == []


def test_no_thread_tunes_what_is_read_ahead():
    """Its end was missed now and then, and the data set waited for it, up to a minute."""
    made = batches.mapped(tf.data.Dataset.range(2), lambda index: index)
    assert made.options().autotune.enabled is False
