"""The order of the data: exact, resumable, and the same whoever reads it."""

import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import combinations
import numpy as np
import pytest
import tensorflow as tf

from input_pipeline import batches, decoded, preprocess

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("seed", [(0, 0), (1, -1), (2**62, 3), (-(2**63), 2**63 - 1)])
def test_what_is_drawn_is_philox(seed):
    """Else a run would not have the same images on every machine."""
    seed = tf.constant(seed, tf.int64)
    both = (batches.ALGORITHM, "philox")
    for dtype, low, high in ((tf.int32, 0, 9), (tf.int64, None, None), (tf.float32, 0.0, 1.0)):
        own, philox = (
            tf.random.stateless_uniform([99], seed, low, high, dtype, alg=alg) for alg in both
        )
        np.testing.assert_array_equal(own, philox)
    own, philox = (tf.random.experimental.stateless_fold_in(seed, 7, alg=alg) for alg in both)
    np.testing.assert_array_equal(own, philox)


def ids_of(step, num_examples, global_batch_size, seed=0):
    return batches.example_ids(
        step, num_examples=num_examples, global_batch_size=global_batch_size, seed=seed
    ).numpy()


def ids_of_positions(count, num_examples, global_batch_size, seed=0):
    """The first `count` ids of training, read in batches of `global_batch_size`."""
    num_steps = -(-count // global_batch_size)
    steps = [ids_of(step, num_examples, global_batch_size, seed) for step in range(num_steps)]
    return np.concatenate(steps)[:count]


def numbered_images(count, height=8, width=8):
    """Images that show their own index, and labels that repeat it."""
    images = np.arange(count, dtype=np.uint8)[:, None, None, None]
    return np.broadcast_to(images, (count, height, width, 3)).copy(), np.arange(count)


def training(images, labels, **changes):
    arguments = {
        "global_batch_size": 4,
        "seed": 0,
        "first_step": 0,
        "last_step": 6,
        "preprocess": None,
    }
    return batches.training_batches(images, labels, **(arguments | changes))


class TestExampleIds:
    @pytest.mark.parametrize(
        ("num_examples", "global_batch_size"),
        [(1, 1), (1, 4), (5, 1), (6, 3), (10, 4), (10, 7), (7, 10), (5, 23), (128, 128)],
    )
    @pytest.mark.pitfall(3)
    def test_each_epoch_holds_each_example_once(self, num_examples, global_batch_size):
        epochs = ids_of_positions(4 * num_examples, num_examples, global_batch_size)
        for epoch in epochs.reshape(4, num_examples):
            assert sorted(epoch) == list(range(num_examples))

    @pytest.mark.parametrize("global_batch_size", [1, 3, 16, 50])
    def test_the_order_does_not_depend_on_the_batch_size(self, global_batch_size):
        expected = ids_of_positions(60, 20, 60)
        np.testing.assert_array_equal(ids_of_positions(60, 20, global_batch_size), expected)

    @pytest.mark.pitfall(26)
    def test_batches_are_full_across_the_end_of_an_epoch(self):
        last_of_first_epoch = ids_of(1, num_examples=6, global_batch_size=4)
        assert last_of_first_epoch.shape == (4,)
        assert {*ids_of(0, 6, 4), *last_of_first_epoch[:2]} == set(range(6))
        assert {*last_of_first_epoch[2:], *ids_of(2, 6, 4)} == set(range(6))

    def test_epochs_and_seeds_have_unrelated_permutations(self):
        """The cipher behind index_shuffle correlates epochs by 0.8 where its key is weak."""
        n = 4000
        orders = [ids_of(epoch, n, n, seed) for seed in (0, 1) for epoch in range(4)]
        correlations = np.corrcoef(np.stack(orders))
        # Of random orders, correlations have a deviation of 1 / sqrt(n) = 0.016.
        assert np.abs(correlations - np.eye(len(orders))).max() < 0.08

    def test_every_example_comes_first_about_equally_often(self):
        firsts = ids_of(0, num_examples=10, global_batch_size=3_000).reshape(-1, 10)[:, 0]
        counts = np.bincount(firsts, minlength=10)  # of 300: 30 each, deviation 5
        assert counts.min() > 10
        assert counts.max() < 55

    def test_neighbours_are_no_more_alike_than_in_a_random_order(self):
        order = ids_of(0, num_examples=50_000, global_batch_size=50_000)
        # Batch means would spread too little if the order spread examples evenly.
        means = order[: 390 * 128].reshape(390, 128).mean(axis=1)
        assert means.std() / (50_000 / np.sqrt(12 * 128)) == pytest.approx(1, abs=0.15)

    def test_is_pure(self):
        np.testing.assert_array_equal(ids_of(7, 100, 16, seed=3), ids_of(7, 100, 16, seed=3))

        @tf.function
        def traced(step):
            return batches.example_ids(step, num_examples=100, global_batch_size=16, seed=3)

        np.testing.assert_array_equal(traced(tf.constant(7, tf.int64)), ids_of(7, 100, 16, seed=3))

    @pytest.mark.parametrize("step", [2**31 - 1, 2**31, 2**33])
    def test_positions_pass_32_bits(self, step):
        ids = ids_of(step, num_examples=50, global_batch_size=50)
        assert ids.dtype == np.int64
        assert sorted(ids) == list(range(50))
        assert list(ids) != list(ids_of(step * 50 % 2**32 // 50, 50, 50))  # where 32 bits end up
        np.testing.assert_array_equal(ids_of(tf.constant(step, tf.int64), 50, 50), ids)


class TestTrainingBatches:
    def test_elements_are_the_named_examples_with_static_shapes(self):
        images, labels = numbered_images(10)
        dataset = training(images, labels)
        assert dataset.element_spec == (
            tf.TensorSpec([4, 8, 8, 3], tf.float32),
            tf.TensorSpec([4], tf.int32),
        )
        for step, (batch, batch_labels) in enumerate(dataset.as_numpy_iterator()):
            np.testing.assert_array_equal(batch_labels, ids_of(step, 10, 4))
            np.testing.assert_array_equal(batch[:, 0, 0, 0], batch_labels)
        assert step == 5

    @pytest.mark.pitfall(28)
    @pytest.mark.parametrize("first_step", [1, 4, 9])
    def test_starting_at_a_step_gives_what_skipping_to_it_gives(self, first_step):
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (10, 8, 8, 3), np.uint8), np.arange(10)
        distort = preprocess.for_images("crop_flip_colour", (8, 8, 3)).train
        whole = training(images, labels, last_step=10, preprocess=distort)
        resumed = training(images, labels, first_step=first_step, last_step=10, preprocess=distort)
        expected = list(whole.skip(first_step).as_numpy_iterator())
        found = list(resumed.as_numpy_iterator())
        assert len(found) == 10 - first_step
        for (images_a, labels_a), (images_b, labels_b) in zip(expected, found, strict=True):
            np.testing.assert_array_equal(labels_a, labels_b)
            np.testing.assert_array_equal(images_a, images_b)

    @pytest.mark.pitfall(30)
    @pytest.mark.parametrize("num_towers", [2, 4])
    def test_towers_get_different_examples(self, num_towers):
        """The epoch's 24 examples are dealt out among towers with none twice and none left."""
        dataset = training(*numbered_images(24), global_batch_size=8, last_step=3)
        by_tower = [[] for _ in range(num_towers)]
        for _, labels in dataset.as_numpy_iterator():
            for tower, share in enumerate(np.split(labels, num_towers)):
                by_tower[tower].extend(share)
        assert all(len(ids) == 24 // num_towers for ids in by_tower)
        assert sorted(np.concatenate(by_tower)) == list(range(24))

    def test_the_same_image_is_distorted_again_at_each_step_and_place(self):
        image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
        distort = preprocess.for_images("crop_flip_colour", (8, 8, 3)).train
        dataset = training(image, np.zeros(1), preprocess=distort)
        seen = np.concatenate([batch for batch, _ in dataset.as_numpy_iterator()])
        assert len(np.unique(seen.reshape(len(seen), -1), axis=0)) == len(seen) == 24

    @pytest.mark.parametrize("global_batch_size", [4, 7])
    def test_every_example_is_mirrored_in_every_other_epoch(self, global_batch_size):
        """Also where a batch runs across the end of an epoch."""
        images = np.arange(20, dtype=np.float32)[:, None]
        dataset = training(
            images,
            np.arange(20),
            global_batch_size=global_batch_size,
            last_step=80 // global_batch_size + 1,
            preprocess=lambda batch, draws: tf.cast(draws.mirrored, tf.float32)[:, None],
        )
        seen = [(labels, mirrored[:, 0]) for mirrored, labels in dataset.as_numpy_iterator()]
        labels, mirrored = (
            np.concatenate(values)[:80].reshape(4, 20) for values in zip(*seen, strict=True)
        )
        by_example = np.take_along_axis(mirrored, labels.argsort(axis=1), axis=1)
        first, second, third, fourth = by_example
        np.testing.assert_array_equal(first, 1 - second)
        np.testing.assert_array_equal(first, third)
        np.testing.assert_array_equal(second, fourth)
        assert 3 < first.sum() < 17  # and in the first epoch about half of them

    def test_coins_depend_on_the_seed(self):
        thrown = [batches.coins(1000, seed=seed).numpy() for seed in (0, 1)]
        assert (thrown[0] != thrown[1]).mean() == pytest.approx(0.5, abs=0.1)
        assert thrown[0].mean() == pytest.approx(0.5, abs=0.1)

    def test_augmentation_draws_depend_on_seed_and_step_only(self):
        seeds = {
            tuple(batches.augmentation_seed(step, seed=seed).numpy())
            for seed in range(3)
            for step in range(5)
        }
        assert len(seeds) == 15
        traced = tf.function(lambda step: batches.augmentation_seed(step, seed=2))
        expected = batches.augmentation_seed(4, seed=2)
        np.testing.assert_array_equal(traced(tf.constant(4, tf.int64)), expected)

    def test_without_preprocessing_other_dtypes_stay(self):
        images = np.linspace(0, 1, 10, dtype=np.float32).reshape(5, 2)
        batch, labels = next(training(images, np.arange(5)).as_numpy_iterator())
        np.testing.assert_array_equal(batch, images[labels])

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"global_batch_size": 0}, "global_batch_size=0: must be at least 1"),
            ({"first_step": 7}, "first_step=7, last_step=6"),
            ({"first_step": -1}, "first_step=-1"),
        ],
    )
    def test_refuses_impossible_ranges(self, changes, message):
        with pytest.raises(ValueError, match=message):
            training(*numbered_images(5), **changes)

    def test_refuses_arrays_that_do_not_fit(self):
        images, labels = numbered_images(5)
        with pytest.raises(ValueError, match="5 images but 4 labels"):
            training(images, labels[:4])
        with pytest.raises(ValueError, match="0 examples"):
            training(images[:0], labels[:0])


class TestLabels:
    """They keep their values, in training and in evaluation."""

    def batched(self, labels):
        images, _ = numbered_images(len(labels))
        arguments = {"global_batch_size": len(labels), "preprocess": None}
        ((_, trained),) = training(images, labels, **arguments, last_step=1)
        ((_, evaluated, _),) = batches.evaluation_batches(images, labels, **arguments)
        assert trained.dtype == evaluated.dtype
        order = ids_of(0, len(labels), len(labels))
        np.testing.assert_array_equal(trained, evaluated.numpy()[order])
        return evaluated

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [([4], "float64"), ([4, 1], "float32"), ([4, 2, 3], "float16"), ([4], "bool")],
    )
    def test_targets_that_are_no_integers_stay_as_they_are(self, dtype, shape):
        labels = np.linspace(0, 0.99, int(np.prod(shape))).reshape(shape)
        labels = (labels > 0.5) if dtype == "bool" else labels.astype(dtype)
        batched = self.batched(labels)
        assert batched.dtype == dtype
        np.testing.assert_array_equal(batched, labels)
        np.testing.assert_array_equal(self.batched(tf.constant(labels)), labels)

    @pytest.mark.parametrize(
        "given, largest, made",
        [
            ("uint8", 255, "int32"),
            ("int64", 2**31 - 1, "int32"),
            ("int64", 2**31, "int64"),
            ("int64", 2**40, "int64"),
            ("uint64", 2**63 - 1, "int64"),
            ("int64", -(2**31), "int32"),
            ("int64", -(2**31) - 1, "int64"),
        ],
    )
    def test_integers_are_as_wide_as_they_must_be(self, given, largest, made):
        batched = self.batched(np.array([0, largest, 1], given))
        assert batched.dtype == made
        np.testing.assert_array_equal(batched, [0, largest, 1])

    def test_lists_are_taken_too(self):
        assert self.batched([0.25, 0.5]).dtype == "float32"
        assert self.batched([2, 1]).dtype == "int32"

    @pytest.mark.parametrize(
        "labels, error, message",
        [
            (
                ["cat", "dog"],
                TypeError,
                "labels are <U3: must be numbers or booleans",
            ),
            (
                np.array([2**63, 0], np.uint64),
                ValueError,
                f"a label is {2**63}: must fit into int64",
            ),
        ],
    )
    def test_others_are_refused(self, labels, error, message):
        with pytest.raises(error, match=message):
            self.batched(labels)


def cut(count: int, size: int) -> list[range]:
    """A batch's places as so many shares, some larger than others."""
    ends = [size * part * (part + 1) // (count * (count + 1)) for part in range(count + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


class TestShares:
    """What each of several workers reads."""

    @pytest.mark.parametrize(
        ("name", "count"),
        combinations.crossed(
            ["crop_flip_colour", "pad_crop_flip", "shift_alternating_flip"],
            [1, 2, 3, 4],
            often=[("crop_flip_colour", 3), ("pad_crop_flip", 4), ("shift_alternating_flip", 2)],
        ),
    )
    def test_shares_are_the_whole_batch_to_the_last_bit(self, name, count):
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (50, 32, 32, 3), np.uint8), np.arange(50)
        chosen = preprocess.for_images(name, (32, 32, 3))
        data = {"global_batch_size": 16, "preprocess": chosen.train, "last_step": 5}
        whole = list(training(images, labels, **data))
        shares = [training(images, labels, share=own, **data) for own in cut(count, 16)]
        for batch, *parts in zip(whole, *shares, strict=True):
            for expected, values in zip(batch, zip(*parts, strict=True), strict=True):
                np.testing.assert_array_equal(np.concatenate(values), expected)

    @pytest.mark.parametrize(("num_examples", "count"), [(24, 2), (24, 3), (10, 3)])
    def test_together_they_see_each_example_once_an_epoch(self, num_examples, count):
        images, labels = numbered_images(num_examples)
        steps = 30  # of 8 examples: whole epochs of 24 and of 10
        seen = [
            list(training(images, labels, global_batch_size=8, last_step=steps,
                          share=own).as_numpy_iterator())
            for own in cut(count, 8)
        ]  # fmt: skip
        ids = [  # [step][8]
            np.concatenate([labels for _, labels in of_step]) for of_step in zip(*seen, strict=True)
        ]
        for epoch in np.reshape(ids, [-1, num_examples]):
            assert sorted(epoch) == list(range(num_examples))
        for own in seen:
            for shown, its_labels in own:
                np.testing.assert_array_equal(shown[:, 0, 0, 0], its_labels)

    def test_only_the_share_is_read_and_preprocessed(self):
        sizes = []

        def note(images, draws):
            sizes.append((images.shape[0], draws.mirrored.shape[0]))
            return tf.cast(images, tf.float32)

        images, labels = numbered_images(12)
        data = training(images, labels, global_batch_size=8, preprocess=note, share=range(3, 5))
        assert {image.shape[0] for image, _ in data} == {2}
        assert set(sizes) == {(2, 2)}

    @pytest.mark.parametrize("count", [2, 3])
    def test_each_example_is_evaluated_once_over_all_shares(self, count):
        images, labels = numbered_images(21)
        found, lengths = [], set()
        for places in cut(count, 8):
            own = list(
                batches.evaluation_batches(
                    images, labels, global_batch_size=8, preprocess=None, share=places
                ).as_numpy_iterator()
            )
            lengths.add(len(own))
            for shown, its_labels, mask in own:
                assert shown.shape[0] == len(places)
                found += [*its_labels[mask]]
        assert sorted(found) == list(range(21))
        assert lengths == {3}

    @pytest.mark.parametrize("make", ["training", "evaluation"])
    @pytest.mark.parametrize(
        "share", [range(0), range(4, 9), range(-1, 3), range(0, 8, 2), range(3, 0, -1)]
    )
    def test_what_is_no_share_of_a_batch_is_refused(self, make, share):
        images, labels = numbered_images(12)
        with pytest.raises(ValueError, match=r": must be a run of places in a batch of .*size=8"):
            if make == "training":
                training(images, labels, global_batch_size=8, share=share)
            else:
                batches.evaluation_batches(
                    images, labels, global_batch_size=8, preprocess=None, share=share
                )


class TestEvaluationBatches:
    @pytest.mark.pitfall(12)
    @pytest.mark.pitfall(26)
    @pytest.mark.parametrize("global_batch_size", [1, 3, 5, 10, 11, 64])
    def test_each_example_counts_once_in_the_order_of_the_data(self, global_batch_size):
        dataset = batches.evaluation_batches(
            *numbered_images(10), global_batch_size=global_batch_size, preprocess=None
        )
        count, seen = 0, []
        for images, labels, mask in dataset.as_numpy_iterator():
            assert images.shape == (global_batch_size, 8, 8, 3)
            np.testing.assert_array_equal(images[:, 0, 0, 0], labels)
            np.testing.assert_array_equal(labels[~mask], 0)
            count += mask.sum()
            seen.extend(labels[mask])
        assert count == 10
        assert seen == list(range(10))

    def test_preprocesses_with_static_shapes(self):
        center = preprocess.for_images("crop_flip_colour", (8, 8, 3)).evaluate
        dataset = batches.evaluation_batches(
            *numbered_images(10), global_batch_size=4, preprocess=center
        )
        assert dataset.element_spec == (
            tf.TensorSpec([4, 6, 6, 3], tf.float32),
            tf.TensorSpec([4], tf.int32),
            tf.TensorSpec([4], tf.bool),
        )
        assert len(list(dataset)) == 3

    @pytest.mark.parametrize(
        ("count", "num_labels", "global_batch_size", "message"),
        [(5, 4, 2, "5 images but 4"), (0, 0, 2, "0 examples"), (5, 5, 0, "=0: must be at least")],
    )
    def test_refuses_what_cannot_be_read(self, count, num_labels, global_batch_size, message):
        images, labels = numbered_images(count)
        with pytest.raises(ValueError, match=message):
            batches.evaluation_batches(
                images, labels[:num_labels], global_batch_size=global_batch_size, preprocess=None
            )


def test_images_are_spread_out_over_all():
    images = np.arange(10)
    np.testing.assert_array_equal(batches.spread_out(images, 4), [0, 3, 6, 9])
    np.testing.assert_array_equal(batches.spread_out(images, 20), images)


class TestAsTensor:
    def test_shares_the_memory_of_an_array_that_lies_as_tensors_do(self):
        images = decoded.empty((5, 4, 4, 3))
        images[:] = np.arange(5, dtype=np.uint8)[:, None, None, None]
        tensor = batches.as_tensor(images)
        assert np.shares_memory(np.asarray(memoryview(tensor)), images)
        assert tensor.device.endswith("CPU:0")
        np.testing.assert_array_equal(tensor, images)
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 7

    @pytest.mark.parametrize("change", ["not aligned", "with gaps", "shared already"])
    def test_copies_others(self, change):
        images = decoded.empty((64, 3))
        images[:] = np.arange(64, dtype=np.uint8)[:, None]
        if change == "shared already":
            batches.as_tensor(images)
        other = {"not aligned": images[1:], "with gaps": images[::2]}.get(change, images)
        expected = other.copy()
        tensor = batches.as_tensor(other)
        assert not np.shares_memory(np.asarray(memoryview(tensor)), images)
        if change != "shared already":
            images[:] = 200
        np.testing.assert_array_equal(tensor, expected)

    def test_outlives_the_array(self):
        tensor = batches.as_tensor(decoded.empty((1000, 3)))
        tensor_of_zeros = tf.zeros_like(tensor)
        gc.collect()
        assert (tensor.numpy() >= tensor_of_zeros.numpy()).all()

    def test_gives_the_same_batches(self):
        images = decoded.empty((20, 8, 8, 3))
        images[:] = np.random.default_rng(0).integers(0, 256, images.shape, np.uint8)
        distort = preprocess.for_images("crop_flip_colour", (8, 8, 3)).train
        copied, labels = images.copy(), np.arange(20)
        of_arrays = list(training(copied, labels, preprocess=distort))
        of_tensors = list(training(batches.as_tensor(images), labels, preprocess=distort))
        for expected, found in zip(of_arrays, of_tensors, strict=True):
            for values in zip(expected, found, strict=True):
                np.testing.assert_array_equal(*values)


LARGE_SET = """
import gc, re, numpy
from pathlib import Path
from input_pipeline import batches, cache, decoded

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def make():
    images = decoded.empty((4000, 160, 160, 3))
    images[:] = 1
    return decoded.Decoded(images, numpy.zeros(4000, numpy.int32), ("all",))

size, growths = 4000 * 160 * 160 * 3, []
warm_up = batches.training_batches(
    numpy.zeros((8, 9, 9, 3), numpy.uint8), numpy.zeros(8), global_batch_size=2, seed=0, last_step=2
)
list(warm_up)
before = peak()
for _ in range(2):  # made, then from the cache
    images, labels, _ = cache.load_or_make("large", "a test", make).arrays
    growths.append((peak() - before) / size)
    tensor = batches.as_tensor(images)
    data = {"global_batch_size": 2, "preprocess": None}
    list(batches.training_batches(tensor, labels, seed=0, last_step=3, **data))
    next(iter(batches.evaluation_batches(tensor, labels, **data)))
    growths.append((peak() - before) / size)
    del images, tensor
    gc.collect()
print(*growths)
"""


@pytest.mark.whole_program
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.long
def test_a_large_set_is_in_memory_once(tmp_path):
    """Made and kept, read from the cache, trained on and evaluated; a second copy would show."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE_SET],
        capture_output=True,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    growths = [float(word) for word in done.stdout.split()]
    assert len(growths) == 4
    assert min(growths) > 0.9 and max(growths) < 1.7, growths
