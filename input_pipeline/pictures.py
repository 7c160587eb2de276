"""Encoded pictures: which are accepted, and how one becomes pixels.

The header of a picture is read by Pillow. The part of an upright JPEG that is needed is decoded by
TensorFlow, which need not decode the rest, and is quick. Pillow decodes all others. docs/data.md
says what happens to odd ones.
"""

import io
import warnings
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps

from . import cuts

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # Pillow's names
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp")

_ORIENTATION = 0x0112  # of EXIF
_EDGE = 2  # pixels
_EXACTLY = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}  # how a JPEG is decoded
_WHOLE = 4  # as a way to decode, after JPEG's four ratios: all of the picture, of any format

# Of large pictures and odd metadata, in whichever thread reads the header.
warnings.filterwarnings("ignore", module=r"PIL\.")


class NoPicture(ValueError):
    """These bytes cannot be used as a picture; the message says why."""


class Header(NamedTuple):
    """What is known of a picture before it is decoded."""

    height: int  # in pixels, as it is to be seen
    width: int  # likewise
    is_upright_jpeg: bool  # whether its pixels lie in the file as they are to be seen


def header(content: bytes) -> Header:
    """Reads what a picture says of itself, without decoding it.

    Raises:
      NoPicture: it is not one of FORMATS, or has more pixels than Pillow takes, against attacks.
    """
    if not content:
        raise NoPicture("is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
            # A camera's file of several JPEGs, an MPO for Pillow, begins with the picture itself.
            is_jpeg = image.format in ("JPEG", "MPO")
            orientation = _orientation(image)
    except Image.UnidentifiedImageError as error:
        raise NoPicture(f"is not {' or '.join(FORMATS)}, or has a damaged header") from error
    except Image.DecompressionBombError as error:
        raise NoPicture(f"has too many pixels by its header: {error}") from error
    except Exception as error:  # whatever Pillow's readers raise of damaged files
        raise NoPicture(f"has a damaged header ({type(error).__name__}: {error})") from error
    if orientation >= 5:  # a quarter turn
        height, width = width, height
    return Header(height, width, is_jpeg and orientation == 1)


def _orientation(image: Image.Image) -> int:
    """EXIF's, 1 (upright) to 8; 1 where it is damaged, which does not make a picture unusable."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # whatever Pillow raises of damaged metadata
        return 1
    return orientation if orientation in range(1, 9) else 1


def decode(content: bytes) -> np.ndarray:
    """A whole picture as it is to be seen: uint8 [height, width, 3].

    It is turned as its camera was held, its transparent parts lie on white, the first one of an
    animation is taken, and of 16 bits the upper 8.
    """
    with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        opened.load()
        image: Image.Image = opened
        if _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return np.asarray(image.convert("RGB"))


def check(content: bytes) -> None:
    """Decodes a picture to its end.

    Raises:
      NoPicture: it cannot be decoded.
    """
    about = header(content)
    try:
        if about.is_upright_jpeg:
            with tf.device("/CPU:0"):
                pixels = tf.io.decode_jpeg(content, channels=3, **_EXACTLY)
        else:
            pixels = decode(content)
    except Exception as error:  # whatever the decoders raise of damaged files
        why = getattr(error, "message", "").rpartition("}} ")[2].partition(" [Op:")[0] or error
        raise NoPicture(f"cannot be decoded; it is cut short or damaged ({why})") from error
    if tuple(pixels.shape[:2]) != about[:2]:
        raise NoPicture("does not have the size that its header gives")


class Looks(NamedTuple):
    """How pictures become squares; the first axis is that of the pictures, or left out for one."""

    way: tf.Tensor  # int32 [n], how often a JPEG's sides are halved as it is decoded, or _WHOLE
    window: tf.Tensor  # int32 [n, 4], (top, left, height, width) of what is decoded, after that
    part: tf.Tensor  # int32 [n, 4], likewise, in that window, of what is scaled
    scale: tf.Tensor  # float32 [n, 2], of its height and width; above 1 enlarges
    offset: tf.Tensor  # float32 [n, 2], in scaled pixels, where the square begins
    mirrored: tf.Tensor  # bool [n], whether left becomes right


def looks(headers: tf.Tensor, cut: cuts.Cut, size: int) -> Looks:
    """How parts of pictures become squares: once for a batch, because it is many small operations.

    A part is decoded alone where the picture is an upright JPEG, and at half, a quarter or an
    eighth of its size where that is still twice what is needed (as Pillow's `reducing_gap=2.0`).

    Args:
      headers: int32 [n, 3], each a `Header`.
      cut: of these pictures; each side of what a part is scaled to is at least `size`.
      size: of the squares.
    """
    sizes, is_upright_jpeg = headers[:, :2], headers[:, 2] != 0
    begin, shape = cut.box[:, :2], cut.box[:, 2:]
    larger = tf.reduce_min(tf.cast(shape, tf.float32) / cut.side, axis=1)  # than what is needed
    halvings = sum(tf.cast(larger >= least, tf.int32) for least in (4.0, 8.0, 16.0))
    halvings = tf.where(is_upright_jpeg, halvings, 0)
    ratio = tf.bitwise.left_shift(1, halvings)[:, tf.newaxis]
    first, end = begin // ratio, -(-(begin + shape) // ratio)
    # Colours at the edge of what is decoded are not those that the whole picture has there.
    outer, outer_end = tf.maximum(first - _EDGE, 0), tf.minimum(end + _EDGE, -(-sizes // ratio))
    scale = cut.side * tf.cast(ratio / shape, tf.float32)
    before = tf.cast(begin % ratio / ratio, tf.float32)  # of the first pixel, outside the part
    return Looks(
        tf.where(is_upright_jpeg, halvings, _WHOLE),
        window=tf.concat([outer, outer_end - outer], axis=1),
        part=tf.concat([first - outer, end - first], axis=1),
        scale=scale,
        # The middle of what is scaled; as in torchvision, a half pixel rounds to even.
        offset=tf.round((cut.side - size) / 2.0) + before * scale,
        mirrored=cut.mirrored,
    )


def square(content: tf.Tensor, look: Looks, size: int) -> tf.Tensor:
    """A part of one picture, in a graph: float32 [size, size, 3], in [0, 255].

    It is scaled as by `tf.image.resize(..., antialias=True)`, which Pillow, torchvision and timm
    call bilinear.

    Args:
      content: string [], the encoded picture.
      look: from `looks`, of this picture alone.
      size: as there.
    """

    def jpeg(ratio):
        return lambda: tf.io.decode_and_crop_jpeg(
            content, look.window, channels=3, ratio=ratio, **_EXACTLY
        )

    def whole():
        return tf.numpy_function(_decode_window, [content, look.window], tf.uint8)

    window = tf.switch_case(look.way, dict(enumerate([*map(jpeg, (1, 2, 4, 8)), whole])))
    top, left, height, width = tf.unstack(look.part)
    part = tf.slice(window, [top, left, 0], [height, width, 3])
    return scaled(part, look.scale, look.offset, look.mirrored, size)


def _decode_window(content: bytes, window: np.ndarray) -> np.ndarray:
    top, left, height, width = window
    return decode(content)[top : top + height, left : left + width]


def scaled(
    pixels: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, mirrored: tf.Tensor, size: int
) -> tf.Tensor:
    """A square of a scaled image, as by one `ScaleAndTranslate` with antialiasing.

    One operation scales rows as wholes and then columns pixel by pixel, and takes about 1.6 times
    as long. So columns become rows here before they are scaled.

    Args:
      pixels: uint8 [height, width, 3].
      scale, offset, mirrored: of a picture's `Looks`.
      size: of the square, float32 [size, size, 3].
    """

    def scaled_rows(rows, scale, offset):
        """[n, m] as [size, m]: each value a weighted mean of those above and below it."""
        resized = tf.raw_ops.ScaleAndTranslate(
            images=rows[tf.newaxis, :, tf.newaxis],
            size=[size, 1],
            scale=tf.stack([scale, 1.0]),
            translation=tf.stack([-offset, 0.0]),
            kernel_type="triangle",
            antialias=True,
        )
        return tf.reshape(resized, [size, -1])

    height, width = tf.shape(pixels)[0], tf.shape(pixels)[1]
    rows = scaled_rows(tf.reshape(pixels, [height, -1]), scale[0], offset[0])  # [y, (x, channel)]
    columns = tf.reshape(tf.transpose(rows), [width, 3 * size])
    columns = scaled_rows(columns, scale[1], offset[1])  # [x, (channel, y)]
    columns = tf.cond(mirrored, lambda: tf.reverse(columns, [0]), lambda: columns)
    return tf.reshape(tf.transpose(tf.reshape(columns, [size * 3, size])), [size, size, 3])
