"""Encoded pictures: what may be one, and how one becomes pixels.

A picture is looked at once, when it is put into a store (`store`): its header is read by Pillow,
and all of it is decoded by TensorFlow. Its pixels come from TensorFlow alone, by one fixed way of
each format, so that they do not depend on what else is installed, nor on threads. What is decided
about the odd ones stands in docs/data.md.
"""

import io
import warnings
from typing import NamedTuple

import tensorflow as tf
from PIL import Image

# Pillow's names of the formats, by the number that a store keeps of each.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
JPEG, PNG, WEBP, GIF, BMP = range(len(FORMATS))
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp")
MOST_PIXELS = 178_956_970  # of one picture, as Pillow's own limit of what is no attack
LONGEST_SIDE = 65_535  # pixels: what JPEG can have

_ORIENTATION = 0x0112  # of EXIF
_UPRIGHT = 1
# TensorFlow takes a BMP of a palette for one of grey values.
_BMP_MODES = ("RGB", "RGBA", "L")
_BMP_WITH_PALETTE = "is a BMP with a palette, which TensorFlow reads wrongly; save it as PNG"


class NoPicture(ValueError):
    """These bytes cannot be used as a picture; the message says why."""


class Header(NamedTuple):
    """What is known of a picture before it is decoded.

    Attributes:
      kind: its place in FORMATS.
      height: in pixels, as it is to be seen, which is turned as `orientation` says.
      width: likewise.
      orientation: of EXIF, 1 to 8; 1 is upright.
    """

    kind: int
    height: int
    width: int
    orientation: int


def header(content: bytes) -> Header:
    """Reads what a picture says of itself, without decoding it.

    Raises:
      NoPicture: it is none of FORMATS, has too many pixels, or is one that TensorFlow does not
        decode rightly.
    """
    if not content:
        raise NoPicture("is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures and odd metadata; sizes are ours
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                found = _header(image)
    except NoPicture:
        raise
    except Image.DecompressionBombError as error:
        raise NoPicture(_too_large("more")) from error
    except Image.UnidentifiedImageError as error:
        raise NoPicture(f"is none of {', '.join(FORMATS)}, or its header is damaged") from error
    except Exception as error:  # whatever Pillow's readers raise of damaged files
        raise NoPicture(f"has a damaged header ({type(error).__name__}: {error})") from error
    return found


def _header(image: Image.Image) -> Header:
    width, height = image.size
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise NoPicture(_too_large(f"{width} x {height}"))
    # A camera's file of several JPEGs, for which Pillow has a name, begins with the picture itself.
    kind = FORMATS.index("JPEG" if image.format == "MPO" else image.format)
    if kind == WEBP and getattr(image, "is_animated", False):
        raise NoPicture("is an animated WebP, on which TensorFlow 2.21 crashes; save a still one")
    if kind == BMP and image.mode not in _BMP_MODES or image.mode == "L" and image.palette:
        raise NoPicture(_BMP_WITH_PALETTE)
    try:
        orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # of damaged metadata, which does not keep anybody from the picture
        orientation = _UPRIGHT
    if type(orientation) is not int or not 1 <= orientation <= 8:
        orientation = _UPRIGHT
    if orientation >= 5:  # a quarter turn
        height, width = width, height
    return Header(kind, height, width, orientation)


def _too_large(size: str) -> str:
    return f"has {size} pixels by its header, and at most {MOST_PIXELS:,} are decoded"


def check(content: bytes) -> Header:
    """The header of a picture that can be decoded to its end.

    Raises:
      NoPicture: it cannot be.
    """
    found = header(content)
    try:
        with tf.device("/CPU:0"):
            shape = _whole_by_kind(tf.constant(content), found.kind).shape
    except tf.errors.OpError as error:
        raise NoPicture(f"cannot be decoded; it is cut short or damaged ({_reason(error)})") from (
            error
        )
    size = (found.height, found.width) if found.orientation < 5 else (found.width, found.height)
    if tuple(shape[:2]) != size:
        raise NoPicture("is not of the size that its header says")
    return found


def _reason(error: tf.errors.OpError) -> str:
    text = error.message.partition("}} ")[2] or error.message
    return text.partition(" [Op:")[0].strip().rstrip(".")[:200]


def square(
    content: tf.Tensor, kind: tf.Tensor, orientation: tf.Tensor, box: tf.Tensor, side: tf.Tensor,
    mirrored: tf.Tensor, size: int,
) -> tf.Tensor:  # fmt: skip
    """A part of one picture, scaled to a square. To be called in a graph.

    The part is decoded alone where the picture is an upright JPEG, and at half, a quarter or an
    eighth of its size where that is still twice what is needed (as Pillow's `reducing_gap=2.0`). It
    is scaled as by `tf.image.resize(..., antialias=True)`, which Pillow, torchvision and timm call
    bilinear.

    Args:
      content: string [], the encoded picture.
      kind: int32 [], its place in FORMATS.
      orientation: int32 [], as EXIF has it.
      box: int32 [4], (top, left, height, width) of the part of the picture as it is to be seen.
      side: float32 [2], height and width to which the part is scaled, each at least `size`; of that
        the middle is kept.
      mirrored: bool [], whether left becomes right.
      size: of the square.

    Returns:
      float32 [size, size, 3], in [0, 255].
    """
    is_upright_jpeg = (kind == JPEG) & (orientation == _UPRIGHT)
    times = tf.reduce_min(tf.cast(box[2:], tf.float32) / side)  # too large for what is needed
    halvings = tf.where(
        is_upright_jpeg, sum(tf.cast(times >= 2.0 * 2**n, tf.int32) for n in (1, 2, 3)), 0
    )
    ratio = tf.bitwise.left_shift(1, halvings)
    first = box[:2] // ratio
    shape = -(-(box[:2] + box[2:]) // ratio) - first
    window = tf.concat([first, shape], axis=0)

    def of_jpeg(ratio):
        return lambda: tf.io.decode_and_crop_jpeg(
            content,
            window,
            channels=3,
            ratio=ratio,
            dct_method="INTEGER_ACCURATE",
            fancy_upscaling=True,
        )

    def of_others():
        return tf.slice(
            _turned(_whole(content, kind), orientation), [*tf.unstack(first), 0],
            [*tf.unstack(shape), 3],
        )  # fmt: skip

    ways = [*map(of_jpeg, (1, 2, 4, 8)), of_others]
    part = tf.switch_case(tf.where(is_upright_jpeg, halvings, 4), dict(enumerate(ways)))
    scale = side * tf.cast(ratio, tf.float32) / tf.cast(box[2:], tf.float32)
    begins = tf.cast(box[:2], tf.float32) / tf.cast(ratio, tf.float32) - tf.cast(first, tf.float32)
    # Of what is scaled the middle; as in torchvision a half pixel goes to the even neighbour.
    offset = tf.round((side - size) / 2.0) + begins * scale
    scaled = tf.raw_ops.ScaleAndTranslate(
        images=part[tf.newaxis],
        size=[size, size],
        scale=scale,
        translation=-offset,
        kernel_type="triangle",
        antialias=True,
    )[0]
    seen = tf.cond(mirrored, lambda: tf.reverse(scaled, [1]), lambda: scaled)
    return tf.ensure_shape(seen, [size, size, 3])


def _whole(content: tf.Tensor, kind: tf.Tensor) -> tf.Tensor:
    """A whole picture as it lies in the file, uint8 [height, width, 3]."""
    branches = {place: (lambda place=place: _whole_by_kind(content, place)) for place in range(5)}
    return tf.switch_case(kind, branches)


def _whole_by_kind(content: tf.Tensor, kind: int) -> tf.Tensor:
    """The same, of a format that is known: the first picture of a GIF, on white where one can see
    through it, and the upper 8 bits of 16.
    """
    if kind == JPEG:
        return tf.io.decode_jpeg(
            content, channels=3, dct_method="INTEGER_ACCURATE", fancy_upscaling=True
        )
    if kind == GIF:
        return tf.io.decode_image(content, channels=3, expand_animations=False)
    if kind == BMP:
        return _on_white(tf.io.decode_bmp(content, channels=0))
    if kind == PNG:  # asked for four channels, TensorFlow 2.21 makes pictures of 1 to 4 bits clear
        return _on_white(tf.io.decode_png(content, channels=0))
    return _on_white(tf.io.decode_webp(content, channels=0)[0])


def _on_white(pixels: tf.Tensor) -> tf.Tensor:
    """Pixels of one to four channels as three: grey or colours, on white if opacity is the last."""
    channels = tf.shape(pixels)[2]
    has_opacity = channels % 2 == 0
    last = channels - tf.cast(has_opacity, tf.int32)
    colours = tf.cast(pixels[:, :, :last], tf.int32)
    colours = tf.tile(colours, [1, 1, 3 // last])
    opacity = tf.where(has_opacity, tf.cast(pixels[:, :, -1:], tf.int32), 255)
    mixed = (colours * opacity + 255 * (255 - opacity) + 127) // 255
    return tf.cast(mixed, tf.uint8)


def _turned(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """A picture as its camera was held, by EXIF's orientation (CIPA DC-008, 4.6.4)."""

    def mirrored():
        return pixels[:, ::-1]

    def transposed():
        return tf.transpose(pixels, [1, 0, 2])

    ways = [
        lambda: pixels,  # 1
        mirrored,
        lambda: pixels[::-1, ::-1],
        lambda: pixels[::-1],
        transposed,
        lambda: transposed()[:, ::-1],  # a quarter turn to the right
        lambda: transposed()[::-1, ::-1],
        lambda: transposed()[::-1],
    ]
    return tf.switch_case(orientation - 1, dict(enumerate(ways)))
