"""Encoded pictures: which are accepted, and how one becomes pixels.

The header of a picture is read by Pillow. Its pixels come from TensorFlow, in one fixed way for
each format, so that they do not depend on what else is installed, nor on threads; only a BMP, which
TensorFlow 2.21 reads wrongly where it has a palette or an unused byte, is read by Pillow.
docs/data.md says what happens to odd ones.
"""

import functools
import io
import warnings
from typing import NamedTuple

import tensorflow as tf
from PIL import Image

from . import cuts

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # Pillow's names
JPEG, PNG, WEBP, GIF, BMP = range(len(FORMATS))
ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp")
MOST_PIXELS = 178_956_970  # of one picture, like Pillow's own limit, against attacks
LONGEST_SIDE = 65_535  # pixels: what JPEG can have

_ORIENTATION = 0x0112  # of EXIF
_UPRIGHT = 1
_EDGE = 2  # pixels
_EXACTLY = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}  # how a JPEG is decoded
_WHOLE = 4  # as a way to decode, after JPEG's four ratios: all of the picture, of any format

# Of large pictures and odd metadata, in whichever thread reads the header.
warnings.filterwarnings("ignore", module=r"PIL\.")


class NoPicture(ValueError):
    """These bytes cannot be used as a picture; the message says why."""


class Header(NamedTuple):
    """What is known of a picture before it is decoded."""

    height: int  # in pixels, as it is to be seen, which is turned as `orientation` says
    width: int  # likewise
    orientation: int  # of EXIF, 1 to 8; 1 is upright
    kind: int  # its place in FORMATS


def header(content: bytes) -> Header:
    """Reads what a picture says of itself, without decoding it.

    Raises:
      NoPicture: it is not one of FORMATS, has too many pixels, or is one that TensorFlow does not
        decode correctly.
    """
    if not content:
        raise NoPicture("is empty")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return _header(image)
    except NoPicture:
        raise
    except Image.DecompressionBombError as error:
        raise NoPicture(_too_large("more")) from error
    except Image.UnidentifiedImageError as error:
        raise NoPicture(f"is not {' or '.join(FORMATS)}, or has a damaged header") from error
    except Exception as error:  # whatever Pillow's readers raise of damaged files
        raise NoPicture(f"has a damaged header ({type(error).__name__}: {error})") from error


def _header(image: Image.Image) -> Header:
    width, height = image.size
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise NoPicture(_too_large(f"{width} x {height}"))
    # A camera's file of several JPEGs, for which Pillow has a name, begins with the picture itself.
    kind = FORMATS.index("JPEG" if image.format == "MPO" else image.format)
    if kind == WEBP and getattr(image, "is_animated", False):
        raise NoPicture("is an animated WebP, on which TensorFlow 2.21 crashes; save a still one")
    try:
        orientation = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # damaged metadata, which does not make the picture unusable
        orientation = _UPRIGHT
    if type(orientation) is not int or not 1 <= orientation <= 8:
        orientation = _UPRIGHT
    if orientation >= 5:  # a quarter turn
        height, width = width, height
    return Header(height, width, orientation, kind)


def _too_large(size: str) -> str:
    return (
        f"has {size} pixels by its header: at most {MOST_PIXELS:,} are decoded, and "
        f"{LONGEST_SIDE:,} a side"
    )


def for_tensorflow(content: bytes, kind: int) -> bytes:
    """The picture in a form that TensorFlow reads correctly: a BMP as PNG, others as they are.

    Raises:
      NoPicture: it is damaged.
    """
    if kind != BMP:
        return content
    try:
        with Image.open(io.BytesIO(content)) as image:
            png = io.BytesIO()
            image.convert("RGBA" if image.has_transparency_data else "RGB").save(png, "PNG")
            return png.getvalue()
    except Exception as error:  # whatever Pillow's reader raises of a damaged file
        raise NoPicture(f"is a damaged BMP ({error})") from error


def check(content: bytes) -> None:
    """Decodes a picture to its end.

    Raises:
      NoPicture: it cannot be decoded.
    """
    about = header(content)
    content = for_tensorflow(content, about.kind)
    try:
        with tf.device("/CPU:0"):
            pixels = _on_white(_as_stored(tf.constant(content), about.kind))
    except tf.errors.ResourceExhaustedError as error:
        raise NoPicture("is too large for the available memory") from error
    except tf.errors.OpError as error:
        text = error.message.partition("}} ")[2] or error.message
        why = text.partition(" [Op:")[0].strip().rstrip(".")[:200]
        raise NoPicture(f"cannot be decoded; it is cut short or damaged ({why})") from error
    if sorted(pixels.shape[:2]) != sorted(about[:2]):
        raise NoPicture("does not have the size that its header gives")


class Looks(NamedTuple):
    """How pictures become squares; the first axis is that of the pictures, or left out for one."""

    kind: tf.Tensor  # int32 [n], places in FORMATS
    orientation: tf.Tensor  # int32 [n], as EXIF has it
    way: tf.Tensor  # int32 [n], how often a JPEG's sides are halved as it is decoded, or _WHOLE
    window: tf.Tensor  # int32 [n, 4], (top, left, height, width) of what is decoded, after that
    begin: tf.Tensor  # int32 [n, 3], where in the window the part begins that is scaled
    shape: tf.Tensor  # int32 [n, 3], of that part
    scale: tf.Tensor  # float32 [n, 2], of its height and width; above 1 enlarges
    offset: tf.Tensor  # float32 [n, 2], in scaled pixels, where the square begins
    mirrored: tf.Tensor  # bool [n], whether left becomes right


def looks(headers: tf.Tensor, cut: cuts.Cut, size: int) -> Looks:
    """How parts of pictures become squares: once for a batch, because it is many small operations.

    A part is decoded alone where the picture is an upright JPEG, and at half, a quarter or an
    eighth of its size where that is still twice what is needed (as Pillow's `reducing_gap=2.0`).

    Args:
      headers: int32 [n, 4], each a `Header`.
      cut: of these pictures; each side of what a part is scaled to is at least `size`.
      size: of the squares.
    """
    box, side, sizes = cut.box, cut.side, headers[:, :2]
    orientations, kinds = headers[:, 2], headers[:, 3]
    is_upright_jpeg = (kinds == JPEG) & (orientations == _UPRIGHT)
    times = tf.reduce_min(tf.cast(box[:, 2:], tf.float32) / side, axis=1)  # as large as needed
    halvings = tf.where(
        is_upright_jpeg, sum(tf.cast(times >= 2.0 * 2**n, tf.int32) for n in (1, 2, 3)), 0
    )
    ratio = tf.bitwise.left_shift(1, halvings)[:, tf.newaxis]
    first = box[:, :2] // ratio
    shape = -(-(box[:, :2] + box[:, 2:]) // ratio) - first
    # Colours at the edge of what is decoded are not those that the whole picture has there.
    outer = tf.maximum(first - _EDGE, 0)
    end = tf.minimum(first + shape + _EDGE, -(-sizes // ratio))
    scale = side * tf.cast(ratio, tf.float32) / tf.cast(box[:, 2:], tf.float32)
    begins = tf.cast(box[:, :2], tf.float32) / tf.cast(ratio, tf.float32)
    begins -= tf.cast(first, tf.float32)
    channel = tf.zeros_like(first[:, :1])
    return Looks(
        kinds,
        orientations,
        tf.where(is_upright_jpeg, halvings, _WHOLE),
        window=tf.concat([outer, end - outer], axis=1),
        begin=tf.concat([first - outer, channel], axis=1),
        shape=tf.concat([shape, channel + 3], axis=1),
        scale=scale,
        # The middle of what is scaled; as in torchvision, a half pixel rounds to even.
        offset=tf.round((side - size) / 2.0) + begins * scale,
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
        kinds = {kind: (lambda kind=kind: _as_stored(content, kind)) for kind in range(5)}
        turned = _turned(tf.switch_case(look.kind, kinds), look.orientation)
        top, left, height, width = tf.unstack(look.window)
        return _on_white(tf.slice(turned, [top, left, 0], [height, width, -1]))

    decoded = tf.switch_case(look.way, dict(enumerate([*map(jpeg, (1, 2, 4, 8)), whole])))
    part = tf.slice(decoded, look.begin, look.shape)
    return scaled(part, look.scale, look.offset, look.mirrored, size)


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
    width = tf.shape(pixels)[1]
    rows = _rows_scaled(pixels, scale[0], offset[0], size)  # [y, (x, channel)]
    columns = tf.reshape(tf.transpose(rows), [width, 3 * size])
    columns = _rows_scaled(columns, scale[1], offset[1], size)  # [x, (channel, y)]
    columns = tf.cond(mirrored, lambda: tf.reverse(columns, [0]), lambda: columns)
    return tf.reshape(tf.transpose(tf.reshape(columns, [size * 3, size])), [size, size, 3])


def _rows_scaled(values: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, size: int) -> tf.Tensor:
    """[n, ...] as [size, m]: each value a weighted mean of those above and below it."""
    rows = tf.reshape(values, [1, tf.shape(values)[0], 1, -1])
    scaled_rows = tf.raw_ops.ScaleAndTranslate(
        images=rows,
        size=[size, 1],
        scale=tf.stack([scale, 1.0]),
        translation=tf.stack([-offset, 0.0]),
        kernel_type="triangle",
        antialias=True,
    )
    return tf.reshape(scaled_rows, [size, -1])


def _as_stored(content: tf.Tensor, kind: int) -> tf.Tensor:
    """A whole picture as it lies in the file, uint8 [height, width, 1 to 4 channels].

    Of a GIF the first picture, and of 16 bits the upper 8.
    """
    if kind == JPEG:
        return tf.io.decode_jpeg(content, channels=3, **_EXACTLY)
    if kind == GIF:
        return tf.io.decode_image(content, channels=3, expand_animations=False)
    if kind == WEBP:
        return tf.io.decode_webp(content, channels=0)[0]
    # Asked for four channels, TensorFlow 2.21 makes pictures of 1 to 4 bits clear.
    return tf.io.decode_png(content, channels=0)


def _on_white(pixels: tf.Tensor) -> tf.Tensor:
    """Pixels of one to four channels as three: grey or colours, on white if opacity is the last."""
    channels = tf.shape(pixels)[2]

    def colours(count):
        return tf.tile(pixels[:, :, :count], [1, 1, 3 // count])

    def mixed():
        opacity = tf.cast(pixels[:, :, -1:], tf.int32)
        seen = tf.cast(colours(channels - 1), tf.int32) * opacity + 255 * (255 - opacity)
        return tf.cast((seen + 127) // 255, tf.uint8)

    return tf.cond(channels % 2 == 0, mixed, lambda: colours(channels))


def _turned(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """A picture as its camera was held, by EXIF's orientation (CIPA DC-008, 4.6.4)."""
    transposed = functools.partial(tf.transpose, pixels, [1, 0, 2])
    ways = [
        lambda: pixels,  # 1
        lambda: pixels[:, ::-1],
        lambda: pixels[::-1, ::-1],
        lambda: pixels[::-1],
        transposed,
        lambda: transposed()[:, ::-1],  # a quarter turn to the right
        lambda: transposed()[::-1, ::-1],
        lambda: transposed()[::-1],
    ]
    return tf.switch_case(orientation - 1, dict(enumerate(ways)))
