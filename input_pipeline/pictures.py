"""Encoded pictures: which are accepted, and how a part of one becomes the square that is seen.

Pillow reads and decodes them, in several threads at once. docs/data.md says what happens to odd
ones.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # Pillow's names
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp")

LEAST_AREA, MOST_AREA = 0.08, 1.0  # of a part, of the picture
LEAST_RATIO, MOST_RATIO = 3 / 4, 4 / 3  # width / height
_TRIES = 10
NUMBERS_OF_A_CUT = 2 * _TRIES + 3

_ORIENTATION = 0x0112  # of EXIF
_REDUCING_GAP = 2.0  # a JPEG is decoded to at least so many times the size that is needed

# From a picture's width and height to a part of it, (left, top, right, bottom), all in pixels, and
# whether that is mirrored.
Cut = Callable[[int, int], tuple[tuple[float, float, float, float], bool]]

# Of large pictures and odd metadata, in whichever thread reads the header.
warnings.filterwarnings("ignore", module=r"PIL\.")


class NoPicture(ValueError):
    """These bytes cannot be used as a picture; the message says why."""


def middle(width: int, height: int) -> tuple:
    """The largest square in the middle, as a `Cut`."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return (left, top, left + side, top + side), False


def at_random(width: int, height: int, drawn: Sequence[float]) -> tuple:
    """A part of random area and ratio, mirrored by a coin; with its numbers, a `Cut`.

    Szegedy et al. 2014 (arXiv:1409.4842, section 6), by the rule of torchvision's
    `RandomResizedCrop`: ten tries, and where none fits the middle, in the nearest ratio allowed.

    Args:
      width, height: of the picture, in pixels.
      drawn: NUMBERS_OF_A_CUT of them, each in [0, 1).
    """
    areas, ratios = drawn[:_TRIES], drawn[_TRIES : 2 * _TRIES]
    y, x, coin = drawn[2 * _TRIES :]
    for area, ratio in zip(areas, ratios, strict=True):
        area = width * height * (LEAST_AREA + (MOST_AREA - LEAST_AREA) * area)
        ratio = LEAST_RATIO * (MOST_RATIO / LEAST_RATIO) ** ratio
        columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 1 <= columns <= width and 1 <= rows <= height:
            left, top = int(x * (width - columns + 1)), int(y * (height - rows + 1))
            break
    else:
        columns = min(width, round(height * MOST_RATIO))
        rows = min(height, round(width / LEAST_RATIO))
        left, top = (width - columns) // 2, (height - rows) // 2
    return (left, top, left + columns, top + rows), coin < 0.5


def square(content: bytes, cut: Cut, size: int) -> np.ndarray:
    """A part of a picture, scaled bilinearly with antialiasing: uint8 [size, size, 3].

    A JPEG is decoded at half, a quarter or an eighth of its size where that is still twice what is
    needed. `cut` is of the picture as it is to be seen; a NoPicture says why it cannot be used.
    """
    with _opened(content) as image:
        is_turned = _orientation(image) >= 5  # by a quarter
        box, is_mirrored = cut(*(image.size[::-1] if is_turned else image.size))
        left, top, right, bottom = box
        larger = min(right - left, bottom - top) / (_REDUCING_GAP * size)  # than is needed
        width = image.width
        wanted = math.ceil(image.width / larger), math.ceil(image.height / larger)
        drafted = image.draft("RGB", wanted)
        ratio = drafted[1][2] / width if drafted else 1.0
        left, top, right, bottom = (place * ratio for place in box)
        outer = math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)
        inner = left - outer[0], top - outer[1], right - outer[0], bottom - outer[1]
        pixels = _as_seen(image).crop(outer)
        pixels = pixels.resize((size, size), Image.Resampling.BILINEAR, box=inner)
    return np.asarray(pixels)[:, :: -1 if is_mirrored else 1]


def decode(content: bytes, mode: str = "RGB") -> np.ndarray:
    """A picture as a person sees it: uint8 [height, width] or [height, width, channels].

    `mode` is Pillow's, of the result; a NoPicture says why it cannot be used.
    """
    with _opened(content) as image:
        return np.asarray(_as_seen(image, mode))


@contextlib.contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """Names whatever Pillow raises of what is no picture, and of one that is too large."""
    if not content:
        raise NoPicture("is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            yield image
    except Image.UnidentifiedImageError as error:
        raise NoPicture(f"is not {' or '.join(FORMATS)}, or has a damaged header") from error
    except Exception as error:  # whatever Pillow raises of damaged files and of too many pixels
        raise NoPicture(f"cannot be decoded ({type(error).__name__}: {error})") from error


def _orientation(image: Image.Image) -> int:
    """EXIF's, 1 (upright) to 8; 1 where it is damaged, which does not make a picture unusable."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever Pillow raises of damaged metadata
        return 1
    return orientation if orientation in range(1, 9) else 1


def _as_seen(image: Image.Image, mode: str = "RGB") -> Image.Image:
    """The pixels as a person sees them.

    The picture is turned as its camera was held, its transparent parts lie on white, the first one
    of an animation is taken, and of 16 bits the upper 8.
    """
    image.load()
    if _orientation(image) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data and mode != "RGBA":
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)
