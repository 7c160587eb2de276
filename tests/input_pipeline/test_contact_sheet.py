"""Images side by side on one sheet."""

import numpy as np
import pytest

from input_pipeline import contact_sheet


@pytest.mark.parametrize(("count", "width", "height"), [(1, 1, 1), (17, 8, 3)])
def test_so_many_images_in_so_many_rows(count, width, height):
    made = contact_sheet.sheet(np.zeros((count, 5, 7, 3), np.uint8), ["x"] * count)
    assert made.size == (6 + width * 118, 6 + height * 132)
    pixels = np.asarray(made)
    assert (pixels[6:118, 6:118] == 0).all() and (pixels[:6] == 255).all()


def test_floating_images_are_stretched_and_grey_ones_are_grey():
    image = np.linspace(-2, 3, 16, dtype=np.float32).reshape(1, 4, 4, 1)
    pixels = np.asarray(contact_sheet.sheet(image, ["ünï 日本 and a caption that is long"]))
    of_image = pixels[6:118, 6:118]
    assert (of_image.min(), of_image.max()) == (0, 255)
    assert (of_image == of_image[:, :, :1]).all()
    assert of_image[0, 0, 0] < of_image[-1, -1, 0]
