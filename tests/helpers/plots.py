"""What a plot shows."""

import numpy as np
from matplotlib import figure as figures
from matplotlib import text as texts


def shown(draw) -> set:
    """The numbers that are drawn, as places, heights, ends and sizes, and all texts."""
    figure, numbers = figures.Figure(), []
    draw(figure)
    for axes in figure.axes:
        numbers += [number for line in axes.lines for number in np.ravel(line.get_xydata())]
        for bar in axes.patches:
            numbers += [bar.get_height(), bar.get_width(), bar.get_x() + bar.get_width()]
        for collection in axes.collections:
            of = [path.vertices for path in collection.get_paths()]
            of += [collection.get_offsets(), getattr(collection, "get_sizes", list)()]
            numbers += [number for array in of for number in np.ravel(array)]
    said = [" ".join(text.get_text().split()) for text in figure.findobj(texts.Text)]
    return {round(float(number), 3) for number in numbers} | set(said)
