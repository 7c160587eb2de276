"""Stores made from a program's own arrays."""

import numpy as np
import photos
import pytest

from input_pipeline import array_source, batches, datasets, images

NAMES = ("ant", "bee")


def same_size(count: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 9, 12, 3), np.uint8)


def of_any_size(count: int = 6) -> list[np.ndarray]:
    return [np.array(photos.picture(20 + number, 30 - number, number)) for number in range(count)]


def labels(count: int = 6) -> np.ndarray:
    return np.arange(count) % 2


class TestStore:
    def test_has_the_pixels_and_labels_as_they_were(self, tmp_path):
        given = same_size()
        loaded = datasets.from_arrays(given, labels(), NAMES, image_size=9, store_dir=tmp_path)
        kept = loaded.store
        assert loaded.class_names == NAMES
        assert kept.index.labels.tolist() == labels().tolist()
        assert kept.index.sizes.tolist() == [[9, 12]] * 6
        for number, content in enumerate(kept.reader(np.arange(6))):
            decoded = np.asarray(photos.Image.open(photos.io.BytesIO(content)))
            np.testing.assert_array_equal(decoded, given[number])
        assert kept.names()[2] == "image 2"

    def test_takes_images_of_any_size_and_encoded_ones(self, tmp_path):
        arrays = of_any_size()
        mixed = [*arrays[:3], *(photos.encoded(photos.picture(24, 40, n)) for n in range(3))]
        kept = datasets.from_arrays(mixed, labels(), NAMES, store_dir=tmp_path).store
        assert kept.index.sizes[:3].tolist() == [list(one.shape[:2]) for one in arrays[:3]]
        assert kept.reader(np.array([4]))[0] == mixed[4]  # as it came

    def test_grey_images_are_seen_in_three_channels(self, tmp_path):
        grey = same_size()[..., :1]
        loaded = datasets.from_arrays(grey, labels(), NAMES, image_size=9, store_dir=tmp_path)
        seen = loaded.at([1])[0]
        assert seen.shape == (9, 9, 3)
        assert (seen[..., 0] == seen[..., 2]).all()

    def test_reads_a_memory_mapped_file(self, tmp_path):
        np.save(tmp_path / "images.npy", same_size())
        mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
        stores = tmp_path / "stores"
        one = datasets.from_arrays(mapped, labels(), NAMES, store_dir=stores)
        other = datasets.from_arrays(same_size(), labels(), NAMES, store_dir=stores)
        assert one.fingerprint == other.fingerprint
        assert len([path for path in stores.iterdir() if path.is_dir()]) == 1  # one store

    @pytest.mark.parametrize(
        "changed",
        [
            {"images": np.flip(same_size(), axis=0).copy()},
            {"labels": 1 - labels()},
            {"class_names": ("bee", "ant")},
            {"images": same_size().reshape(6, 12, 9, 3)},
        ],
        ids=["pixels", "labels", "names", "shape"],
    )
    def test_another_set_is_another_store(self, changed, tmp_path):
        given = {"images": same_size(), "labels": labels(), "class_names": NAMES}
        one = datasets.from_arrays(**given, store_dir=tmp_path)
        other = datasets.from_arrays(**given | changed, store_dir=tmp_path)
        assert one.store.path != other.store.path
        assert one.fingerprint != other.fingerprint

    def test_goes_on_from_any_example(self):
        source = array_source.Arrays(same_size(), labels(), NAMES)
        assert list(source.examples(4)) == list(source.examples(0))[4:]

    def test_trains_in_the_order_of_any_other_set(self, tmp_path):
        loaded = datasets.from_arrays(
            of_any_size(), labels(), NAMES, image_size=16, store_dir=tmp_path
        )
        prepared = images.preprocessing("random_resized_crop", loaded)
        training = images.training(loaded, prepared, seed=3)
        (_, seen), *_ = training.batches(0, 1, global_batch_size=4)
        ids = batches.example_ids(0, num_examples=6, global_batch_size=4, seed=3)
        assert seen.numpy().tolist() == labels()[np.asarray(ids)].tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"images": same_size().astype(np.float32)},
            "image 0: must be uint8 [height, width, channels] with 1 or 3 channels and at least "
            "one pixel, or the bytes of a picture; it is float32 of shape [9, 12, 3]",
        ),
        ({"images": same_size()[..., 0]}, "image 0: must be uint8"),
        (
            {"images": same_size()[:, :0]},
            "and at least one pixel, or the bytes of a picture; it is",
        ),
        ({"images": same_size()[:0]}, "images: there are none"),
        (
            {"labels": labels(5)},
            "labels: must be 6 integers, one for each image; they are int64 of shape [5]",
        ),
        ({"labels": labels() / 2}, "they are float64 of shape [6]"),
        ({"labels": labels() + 1}, "labels: 2 has no class name; with 2 names, labels are 0 to 1"),
        ({"labels": labels() - 1}, "labels: -1 has no class name; with 2 names"),
    ],
)
def test_what_cannot_be_a_set_is_refused(given, message, tmp_path):
    right = {"images": same_size(), "labels": labels(), "class_names": NAMES}
    with pytest.raises(datasets.DataError) as raised:
        datasets.from_arrays(**right | given, store_dir=tmp_path)
    assert message in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_bytes_that_are_no_picture_are_named(tmp_path):
    broken = [photos.encoded(photos.picture(20, 20)), b"no picture"]
    with pytest.raises(datasets.DataError, match="image 1"):
        datasets.from_arrays(broken, [0, 1], NAMES, store_dir=tmp_path)
