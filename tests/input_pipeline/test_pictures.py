"""Encoded pictures: what may be one, and its pixels beside Pillow's."""

import io
import itertools
import struct

import numpy as np
import photos
import pytest
from PIL import Image, ImageOps

from input_pipeline import pictures

PICTURE = photos.picture(40, 56)
PIXELS = np.asarray(PICTURE)
VALUES = np.arange(0, 65536, 29, dtype=np.uint16)[: 40 * 56].reshape(40, 56)


def bmp_of_32_bits(unused: int, width: int = 56, height: int = 40) -> bytes:
    """As Windows's programs write them: the fourth byte of each pixel says nothing."""
    pixels = np.dstack([PIXELS[::-1, :, ::-1], np.full((40, 56), unused, np.uint8)]).tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 32, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


def seen(kind, image=PICTURE, expected=None, **options):
    """A file, what is to be seen, None for what Pillow converts it to, and how near to that."""
    tolerance = {"JPEG": 2}.get(kind, 1 if image.has_transparency_data else 0)
    if image.mode in ("RGBA", "LA"):
        white = Image.new("RGBA", image.size, "white")
        expected = np.asarray(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))
    return photos.encoded(image, kind, **options), expected, tolerance


SEE_THROUGH = Image.merge("RGBA", [*PICTURE.split(), Image.fromarray(VALUES.astype(np.uint8))])
DIAGONAL = np.eye(40, 56, dtype=np.uint8)
ANIMATED = {"save_all": True, "append_images": [photos.picture(40, 56, seed) for seed in (1, 2)]}
ODD = {
    "grey jpeg": seen("JPEG", PICTURE.convert("L")),
    "cmyk jpeg": seen("JPEG", PICTURE.convert("CMYK"), quality=90),
    "progressive jpeg": seen("JPEG", progressive=True),
    "webp": seen("WEBP", expected=PIXELS, lossless=True),
    **{
        f"{kind} of mode {mode}": seen(kind, PICTURE.convert(mode))
        for kind in ("PNG", "BMP")
        for mode in ("RGB", "L", "P", "1")
    },
    "png of 2 colours": seen("PNG", PICTURE.quantize(2)),
    "png of 9 colours": seen("PNG", PICTURE.quantize(9)),
    "grey on white": seen("PNG", SEE_THROUGH.convert("LA")),
    "png on white": seen("PNG", SEE_THROUGH),
    "webp on white": seen("WEBP", SEE_THROUGH, lossless=True, exact=True),
    "a clear colour": seen(
        "PNG", Image.fromarray(DIAGONAL), np.where(DIAGONAL, 1, 255)[..., None], transparency=0
    ),
    "16 bits": seen("PNG", Image.fromarray(VALUES), VALUES[..., np.newaxis] >> 8),
    "animated gif": seen("GIF", **ANIMATED),
    "animated webp": seen("WEBP", expected=PIXELS, lossless=True, **ANIMATED),
    "bmp with an unused byte of 0": (bmp_of_32_bits(0), PIXELS, 0),
    "bmp with an unused byte of 255": (bmp_of_32_bits(255), PIXELS, 0),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_picture_is_seen_as_docs_say(name):
    content, expected, tolerance = ODD[name]
    if expected is None:
        expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    check_seen(content, np.broadcast_to(expected, PIXELS.shape), tolerance)


def check_seen(content: bytes, expected: np.ndarray, tolerance: int) -> None:
    """Four squares of it, not scaled, that are all of it together."""
    height, width, _ = expected.shape
    sizes = []
    pictures.square(content, lambda *size: sizes.append(size) or pictures.middle(*size), 32)
    assert sizes == [(width, height)]
    for top, left in itertools.product((0, height - 32), (0, width - 32)):
        result = square(content, (top, left, 32, 32))
        differences = result - expected[top : top + 32, left : left + 32]
        assert np.abs(differences).max() <= tolerance


def square(content: bytes, box, mirrored: bool = False) -> np.ndarray:
    """Of an encoded picture, whose box is (top, left, height, width): [32, 32, 3]."""
    top, left, height, width = box
    cut = (left, top, left + width, top + height), mirrored
    return pictures.square(content, lambda *size: cut, 32).astype(int)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9)])
def test_a_picture_is_turned_as_its_camera_was(kind, orientation):
    exif = Image.Exif()
    exif[0x0112 if orientation else 0x010F] = orientation or "a maker"
    content = photos.encoded(PICTURE, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    check_seen(content, expected, 2)


JPEG = photos.encoded(PICTURE)
PNG = photos.encoded(PICTURE, "PNG")
REFUSED = {
    "empty": (b"", "is empty"),
    "text": (b"<html>", "is not JPEG or PNG or WEBP or GIF or BMP, or has a damaged header"),
    "tiff": (photos.encoded(PICTURE, "TIFF"), "is not JPEG or PNG"),
    "cut jpeg": (JPEG[:-200], "cannot be decoded"), "head": (JPEG[:30], "cannot be decoded"),
    "cut png": (PNG[:-200], "cannot be decoded"),
    "bomb": (bmp_of_32_bits(0, 14_000, 14_000), "cannot be decoded .DecompressionBombError"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_says_why(name):
    content, why = REFUSED[name]
    with pytest.raises(pictures.NoPicture, match=why):
        pictures.decode(content)


@pytest.mark.parametrize(
    ("size", "box", "kind", "orientation", "tolerance"),
    [
        ((300, 400), (0, 50, 300, 300), "PNG", 1, 0),
        ((33, 501), (0, 234, 33, 33), "PNG", 1, 0),
        ((32, 32), (0, 0, 32, 32), "PNG", 1, 0),
        ((20, 26), (0, 3, 20, 20), "PNG", 1, 0),
        *(((120, 200), (16, 24, 64, 48), "JPEG", orientation, 2) for orientation in (1, 6)),
        *(((120, 200), (16, 24, 64, 48), "PNG", orientation, 2) for orientation in (1, 6)),
        # Decoded at a quarter or half of its size.
        ((600, 800), (0, 0, 600, 800), "JPEG", 1, 8),
        ((600, 800), (37, 101, 511, 340), "JPEG", 1, 8),
        ((600, 800), (1, 3, 599, 797), "JPEG", 1, 8),
    ],
)
def test_a_part_is_cut_out_and_scaled_as_pillow_does(size, box, kind, orientation, tolerance):
    """Bilinear with antialiasing, as torchvision and timm do it with Pillow."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = photos.encoded(photos.picture(*size), kind, exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    top, left, height, width = box
    part = upright.crop((left, top, left + width, top + height))
    expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    for mirrored, step in ((False, 1), (True, -1)):
        differences = np.abs(square(content, box, mirrored) - expected[:, ::step])
        assert differences.max() <= tolerance and differences.mean() < 1


def by_hand(height, width, drawn):
    """torchvision's RandomResizedCrop.get_params, with these numbers for its random ones."""
    areas = 0.08 + 0.92 * np.array(drawn[:10])
    ratios = np.exp(np.log(3 / 4) + np.log((4 / 3) / (3 / 4)) * np.array(drawn[10:20]))
    for share, ratio in zip(areas, ratios, strict=True):
        area = height * width * share
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(drawn[20] * (height - h + 1)), int(drawn[21] * (width - w + 1)), h, w
    ratio = width / height
    if ratio < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif ratio > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("stretch", [[1, 1], [1, 40], [40, 1]])
def test_a_part_at_random_is_torchvision_s(stretch):
    random = np.random.default_rng(0)
    sizes = [*random.integers(1, 9, (64, 2)), *random.integers(20, 900, (64, 2))]
    for size in (np.array(sizes) * stretch).tolist():
        numbers = random.random(pictures.NUMBERS_OF_A_CUT).tolist()
        top, left, height, width = by_hand(*size, numbers)
        box = left, top, left + width, top + height
        assert pictures.at_random(*size[::-1], numbers) == (box, numbers[-1] < 0.5)


def test_the_middle_is_the_largest_square():
    assert pictures.middle(800, 600) == ((100, 0, 700, 600), False)
    assert pictures.middle(3, 8)[0] == (0, 2.5, 3, 5.5)
