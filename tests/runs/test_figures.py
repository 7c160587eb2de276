"""Pictures for TensorBoard."""

import numpy as np
import pytest

from towers.runs import figures

CELL = 44  # pixels of a labelled cell


def shade(picture: np.ndarray, row: int, column: int, num_classes: int = 2, cell: int = CELL):
    """Brightness of a cell near its corner, where no digit is."""
    margin = picture.shape[0] - cell * num_classes
    return int(picture[margin + row * cell + 1, margin + column * cell + 1].astype(int).sum())


def test_stretched_maps_each_images_own_range():
    images = np.array([[-1.0, 0.0, 3.0], [5.0, 7.0, 9.0]]).reshape(2, 1, 3, 1)
    expected = np.array([[0.0, 0.25, 1.0], [0.0, 0.5, 1.0]]).reshape(2, 1, 3, 1)
    np.testing.assert_allclose(figures.stretched(images), expected)


def test_stretched_survives_an_image_of_one_colour():
    np.testing.assert_array_equal(figures.stretched(np.full([1, 2, 2, 3], 4.0)), 0.0)


def test_rows_are_labels_and_darker_is_more():
    # Of ten cats eight are found; of four dogs one.
    picture = figures.confusion_matrix(np.array([[8, 2], [3, 1]]), ("cat", "dog"))
    assert picture.dtype == np.uint8
    assert picture.shape[0] == picture.shape[1] and picture.shape[2] == 3
    cells = [shade(picture, row, column) for row, column in np.ndindex(2, 2)]
    cat_as_cat, cat_as_dog, dog_as_cat, dog_as_dog = cells  # 0.8, 0.2, 0.75, 0.25
    assert cat_as_cat < dog_as_cat < dog_as_dog < cat_as_dog


def test_a_class_without_examples_stays_pale():
    picture = figures.confusion_matrix(np.array([[0, 0], [0, 5]]), ("cat", "dog"))
    assert shade(picture, 0, 0) == shade(picture, 0, 1) == shade(picture, 1, 0)
    assert shade(picture, 1, 1) < shade(picture, 0, 0)


def test_counts_are_written_into_the_cells():
    one, two = (
        figures.confusion_matrix(np.array([[count, 0], [0, count]]), ("cat", "dog"))
        for count in (1, 2)
    )
    margin = one.shape[0] - 2 * CELL
    differs = (one != two).any(axis=-1)
    assert differs[margin : margin + CELL, margin : margin + CELL].any()
    assert not differs[:margin].any() and not differs[:, :margin].any()


def test_names_stand_beside_their_row_and_above_their_column():
    confusion = np.eye(2, dtype=int)
    named = figures.confusion_matrix(confusion, ("cat", "dog"))
    other = figures.confusion_matrix(confusion, ("cat", "cow"))
    margin = named.shape[0] - 2 * CELL
    differs = (named != other).any(axis=-1)
    assert differs[margin + CELL :, :margin].any() and differs[:margin, margin + CELL :].any()
    assert not differs[: margin + CELL, : margin + CELL].any()


@pytest.mark.parametrize("name", ["x", "large_omnivores_and_herbivores"])
def test_the_longest_name_fits(name):
    picture = figures.confusion_matrix(np.eye(2, dtype=int), (name, name))
    assert picture[:, :3].min() == 255 and picture[:3].min() == 255


def test_a_hundred_classes_are_drawn_without_names():
    confusion = np.eye(100, dtype=int)
    confusion[7, 93] = 3
    picture = figures.confusion_matrix(confusion, tuple(str(i) for i in range(100)))
    assert picture.shape == (600, 600, 3)
    often, seldom, never = (
        shade(picture, row, column, num_classes=100, cell=6)
        for row, column in ((7, 93), (7, 7), (93, 7))
    )
    assert often < seldom < never
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4  # shares 0, 1/4, 3/4 and 1
