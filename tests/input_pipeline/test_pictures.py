"""Encoded pictures: what may be one, and its pixels beside Pillow's."""

import io
import struct
import zlib

import numpy as np
import photos
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from input_pipeline import cuts, pictures

PICTURE = photos.picture(40, 56)
PIXELS = np.asarray(PICTURE)


def pixels_of(content: bytes) -> np.ndarray:
    """A whole picture as it is to be seen."""
    pictures.check(content)
    found = pictures.header(content)
    content = pictures.for_tensorflow(content, found.kind)
    whole = pictures._on_white(pictures._as_stored(tf.constant(content), found.kind))
    return pictures._turned(whole, tf.constant(found.orientation)).numpy()


def on_white(image: Image.Image) -> np.ndarray:
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, "white")
    return np.asarray(Image.alpha_composite(white, image).convert("RGB"))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
def test_pixels_of_a_format_without_loss_are_those_of_the_picture(kind):
    options = {"lossless": True} if kind == "WEBP" else {}
    np.testing.assert_array_equal(pixels_of(photos.encoded(PICTURE, kind, **options)), PIXELS)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_of_a_jpeg_are_pillow_s(mode, progressive):
    content = photos.encoded(PICTURE.convert(mode), progressive=progressive, quality=90)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    assert np.abs(pixels_of(content) - expected).max() <= 2


@pytest.mark.parametrize("mode", ["L", "LA", "P", "P of 2", "P of 9", "1", "RGBA"])
def test_a_png_of_any_mode_lies_on_white(mode):
    kind, _, colours = mode.partition(" of ")
    image = PICTURE.quantize(int(colours)) if colours else PICTURE.convert(kind)
    if mode in ("LA", "RGBA"):
        image.putalpha(
            Image.fromarray(np.arange(40 * 56, dtype=np.uint32).astype(np.uint8).reshape(40, 56))
        )
    found = pixels_of(photos.encoded(image, "PNG")).astype(int)
    assert np.abs(found - on_white(image)).max() <= 1


def test_an_opaque_webp_and_one_that_is_not():
    image = PICTURE.copy()
    image.putalpha(100)
    found = pixels_of(photos.encoded(image, "WEBP", lossless=True)).astype(int)
    assert np.abs(found - on_white(image)).max() <= 1


def test_of_16_bits_the_upper_8_are_kept():
    values = np.arange(0, 65536, 29, dtype=np.uint16)[: 40 * 56].reshape(40, 56)
    found = pixels_of(photos.encoded(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(found, np.repeat((values >> 8)[..., None], 3, axis=2))


def test_the_first_picture_of_an_animated_gif():
    others = [photos.picture(40, 56, seed) for seed in (1, 2)]
    content = photos.encoded(PICTURE, "GIF", save_all=True, append_images=others)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(pixels_of(content), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_was(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = photos.encoded(PICTURE, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB"))
    found = pictures.header(content)
    assert (found.height, found.width) == expected.shape[:2]
    assert np.abs(pixels_of(content).astype(int) - expected).max() <= 2


def chunk(kind: bytes, data: bytes) -> bytes:
    """A part of a PNG file."""
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


def bomb(side: int) -> bytes:
    """A small PNG whose header names so many pixels a side."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000)))


def animated_webp() -> bytes:
    return photos.encoded(PICTURE, "WEBP", save_all=True, append_images=[photos.picture(40, 56, 1)])


JPEG = photos.encoded(PICTURE)
PNG = photos.encoded(PICTURE, "PNG")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"<html>not found</html>", "is not JPEG or PNG or WEBP or GIF or BMP, or has a damaged"),
        (JPEG[:-200], "is cut short or damaged"),
        (JPEG[:30], "damaged"),
        (PNG[:-200], "is cut short or damaged"),
        (PNG[:60] + bytes(40) + PNG[100:], "damaged"),
        (bomb(50_000), "pixels by its header: at most 178,956,970 are decoded"),
        (bomb(14_000), "has more pixels by its header"),
        (photos.encoded(PICTURE.resize((70_000, 1)), "PNG"), "70000 x 1 pixels by its header"),
        (animated_webp(), "is an animated WebP"),
        (photos.encoded(PICTURE, "BMP")[:400], "is a damaged BMP"),
        (photos.encoded(PICTURE, "TIFF"), "is not JPEG or PNG"),
    ],
    ids=["empty", "text", "cut jpeg", "head", "cut png", "damaged png", "bomb", "large", "long",
         "animated webp", "cut bmp", "tiff"],
)  # fmt: skip
def test_what_cannot_be_used_says_why(content, why):
    with pytest.raises(pictures.NoPicture, match=why):
        pictures.check(content)


def bmp_of_32_bits(unused: int) -> bytes:
    """As Windows's programs write them: the fourth byte of each pixel says nothing."""
    pixels = np.dstack([PIXELS[::-1, :, ::-1], np.full((40, 56), unused, np.uint8)]).tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, 56, 40, 1, 32, 0, len(pixels), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


@pytest.mark.parametrize("unused", [0, 255])
def test_an_unused_byte_of_a_bmp_is_no_opacity(unused):
    np.testing.assert_array_equal(pixels_of(bmp_of_32_bits(unused)), PIXELS)


@pytest.mark.parametrize("mode", ["P", "L", "1"])
def test_a_bmp_has_the_colours_of_its_palette(mode):
    image = PICTURE.convert(mode)
    found = pixels_of(photos.encoded(image, "BMP"))
    np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("subsampling", [0, 1, 2], ids=["4:4:4", "4:2:2", "4:2:0"])
def test_a_part_of_a_jpeg_has_the_colours_of_the_whole(square, subsampling):
    noise = np.random.default_rng(0).integers(0, 256, (90, 110, 3)).astype(np.uint8)
    image = Image.fromarray(noise).resize((440, 360), Image.Resampling.BICUBIC)
    content = photos.encoded(image, quality=95, subsampling=subsampling)
    whole = Image.open(io.BytesIO(content))
    for top, left, height, width in [(33, 51, 77, 99), (1, 3, 64, 64), (295, 339, 65, 101)]:
        part = whole.crop((left, top, left + width, top + height))
        expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
        found = square(content, (top, left, height, width), (32, 32))
        assert np.abs(found - expected).max() <= 2


@pytest.fixture(scope="module")
def square():
    """(content, box, side, mirrored) to the square of an encoded picture, rounded."""

    @tf.function(autograph=False)
    def graph(content, header, *cut):
        looks = pictures.looks(header, cuts.Cut(*cut), 32)
        look = pictures.Looks(*(of_all[0] for of_all in looks))
        return pictures.square(content, look, 32)

    def found(content, box, side, mirrored=False):
        pictures.check(content)
        pixels = graph(
            tf.constant(content),
            tf.constant([pictures.header(content)]),
            tf.constant([box], tf.int32),
            tf.constant([side], tf.float32),
            tf.constant([mirrored]),
        ).numpy()
        assert pixels.dtype == np.float32
        return np.rint(pixels).astype(int)

    return found


@pytest.mark.parametrize("size", [(300, 400), (33, 500), (32, 32), (20, 25)])
def test_a_square_is_pillow_s_to_one_step(square, size):
    """Bilinear with antialiasing, of the middle, as torchvision and timm do it with Pillow."""
    image = photos.picture(*size)
    height, width = size
    shorter = min(size)
    side = (32 * height // shorter, 32 * width // shorter)
    scaled = np.asarray(image.resize(side[::-1], Image.Resampling.BILINEAR)).astype(int)
    top, left = round((side[0] - 32) / 2), round((side[1] - 32) / 2)
    found = square(photos.encoded(image, "PNG"), (0, 0, *size), side)
    expected = scaled[top : top + 32, left : left + 32]
    assert np.abs(found - expected).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_part_is_cut_out_before_it_is_scaled(square, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = photos.encoded(photos.picture(120, 200), kind, exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    top, left, height, width = 16, 24, 64, 48
    part = upright.crop((left, top, left + width, top + height))
    expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    found = square(content, (top, left, height, width), (32, 32))
    assert np.abs(found - expected).max() <= 2


@pytest.mark.parametrize("box", [(0, 0, 600, 800), (37, 101, 511, 340), (1, 3, 599, 797)])
def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(square, box):
    """At a quarter or half of its size, beside all of it scaled by Pillow."""
    image = photos.picture(600, 800)
    content = photos.encoded(image, quality=95)
    top, left, height, width = box
    part = Image.open(io.BytesIO(content)).crop((left, top, left + width, top + height))
    expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    found = square(content, box, (32, 32))
    assert np.abs(found - expected).mean() < 1
    assert np.abs(found - expected).max() <= 8


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [1, 40, 224])
@pytest.mark.parametrize("height,width", [(300, 330), (97, 211), (8, 5), (1, 1)])
def test_scaling_has_the_bits_of_one_operation(height, width, size, mirrored):
    """Smaller and larger; of an offset, and of the very edge."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    for scale, offset in (
        ((size / height, size / width), (0.0, 0.0)),
        ((1.3 * size / height, 1.1 * size / width), (0.25, 0.1 * size)),
    ):
        scale, offset = np.float32(scale), np.float32(offset)
        [expected] = tf.raw_ops.ScaleAndTranslate(
            images=pixels[np.newaxis], size=[size, size], scale=scale, translation=-offset,
            kernel_type="triangle", antialias=True,
        ).numpy()  # fmt: skip
        expected = expected[:, ::-1] if mirrored else expected
        found = pictures.scaled(*map(tf.constant, (pixels, scale, offset, mirrored)), size)
        np.testing.assert_array_equal(found, expected)
