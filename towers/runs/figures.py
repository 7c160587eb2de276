"""Pictures for TensorBoard, drawn with Pillow, which TensorBoard brings."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

LONGEST_LABELLED = 20  # more classes than this are drawn without names
CORNER = "label \\ predicted"


def stretched(images: np.ndarray) -> np.ndarray:
    """Maps each image's own range to [0, 1]: standardized images have no fixed one.

    Args:
      images: floating [n, height, width, channels].
    """
    low = images.min(axis=(1, 2, 3), keepdims=True)
    high = images.max(axis=(1, 2, 3), keepdims=True)
    return (images - low) / np.maximum(high - low, 1e-6)


def confusion_matrix(confusion: np.ndarray, class_names: tuple[str, ...]) -> np.ndarray:
    """Draws a confusion matrix: rows are labels, columns predictions, darker is more.

    Args:
      confusion: integer [num_classes, num_classes], examples by (label, predicted class).
      class_names: one per class.

    Returns:
      uint8 [height, width, 3]; each row is shaded by its share of the label's examples.
    """
    num_classes = len(class_names)
    labelled = num_classes <= LONGEST_LABELLED
    cell = 44 if labelled else max(2, 600 // num_classes)
    margin = _room_for(class_names) if labelled else 0
    side = margin + cell * num_classes
    picture = Image.new("RGB", (side, side), "white")
    draw = ImageDraw.Draw(picture)
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    for row, column in np.ndindex(*confusion.shape):
        left, top = margin + column * cell, margin + row * cell
        share = float(shares[row, column])
        draw.rectangle([left, top, left + cell - 1, top + cell - 1], fill=_blue(share))
        if labelled:
            ink = "white" if share > 0.5 else "black"
            _centred(draw, str(confusion[row, column]), left + cell / 2, top + cell / 2, ink)
    if labelled:
        picture = _with_names(picture, class_names, margin, cell)
    return np.asarray(picture)


def _room_for(names: tuple[str, ...]) -> int:
    """Pixels beside the cells that the longest of the names and the corner's words need."""
    font = ImageFont.load_default(13)
    return 12 + max(round(font.getlength(text)) for text in (CORNER, *names))


def _blue(share: float) -> tuple[int, int, int]:
    return (int(247 - 239 * share), int(251 - 203 * share), int(255 - 148 * share))


def _centred(draw: ImageDraw.ImageDraw, text: str, x: float, y: float, ink: str) -> None:
    draw.text((x, y), text, fill=ink, font=ImageFont.load_default(13), anchor="mm")


def _with_names(picture: Image.Image, names, margin: int, cell: int) -> Image.Image:
    font = ImageFont.load_default(13)
    draw = ImageDraw.Draw(picture)
    for index, name in enumerate(names):
        middle = margin + index * cell + cell / 2
        draw.text((margin - 6, middle), name, fill="black", font=font, anchor="rm")
    # Column names are written on a strip that is then turned to be read upward.
    strip = Image.new("RGB", (margin, picture.width), "white")
    draw = ImageDraw.Draw(strip)
    for index, name in enumerate(names):
        draw.text((6, margin + index * cell + cell / 2), name, fill="black", font=font, anchor="lm")
    picture.paste(strip.rotate(90, expand=True), (0, 0))
    draw = ImageDraw.Draw(picture)
    draw.text((margin - 6, margin - 16), CORNER, fill="gray", font=font, anchor="rm")
    return picture
