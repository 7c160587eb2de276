"""Images side by side on one sheet: what a network sees, or what it takes for something else."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from towers.runs import summaries

_SIDE, _CAPTION, _GAP = 112, 14, 6  # pixels: of an image, of the line below it, between two
_COLUMNS, _LONGEST = 8, 18  # images of a row; characters of a caption


def sheet(images: np.ndarray, captions: Sequence[str]) -> Image.Image:
    """A sheet of images with a line below each.

    Args:
      images: [n, height, width, channels], of 1 or 3 channels; uint8 as they are, and floating ones
        stretched from their least to their largest value, each by itself.
      captions: one for each.
    """
    if images.dtype != np.uint8:
        images = np.rint(255 * summaries.stretched(images)).astype(np.uint8)
    colours = np.broadcast_to(images, (*images.shape[:3], 3))
    columns = max(1, min(_COLUMNS, len(images)))
    rows = -(-len(images) // columns)
    width, height = _SIDE + _GAP, _SIDE + _CAPTION + _GAP
    made = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), "white")
    draw = ImageDraw.Draw(made)
    for place, (image, caption) in enumerate(zip(colours, captions, strict=True)):
        left = _GAP + place % columns * width
        top = _GAP + place // columns * height
        resized = Image.fromarray(image).resize((_SIDE, _SIDE), Image.Resampling.BOX)
        made.paste(resized, (left, top))
        shown = caption if len(caption) <= _LONGEST else f"{caption[: _LONGEST - 2]}.."
        draw.text((left, top + _SIDE), shown, "black")
    return made
