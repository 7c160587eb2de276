"""`shapes`: an embedded data set of 6,000 small pictures in ten classes, made in about a second.

Each picture holds one shape of random place, size, rotation and colours on a slanting background
with noise. The colours say nothing about the class, so that a linear model learns next to
nothing, and each class stays itself under mirroring and under crops of 24x24.
"""

import numpy as np

from . import checks

_SIZE = 32  # pixels on each side
# Of their centers, from the picture's middle: [32, 1] and [1, 32].
_Y = (np.arange(_SIZE) - (_SIZE - 1) / 2)[:, np.newaxis]
_X = _Y.T

_SPLITS = {"train": (0, 5_000), "test": (1, 1_000)}  # random stream, number of examples

_MAX_SHIFT = 2.5  # pixels from the middle, on each axis
_MIN_RADIUS, _MAX_RADIUS = 6.5, 10.5  # pixels from a shape's middle to its farthest points
_COLOUR_CANDIDATES = 4  # the one farthest from the background becomes the shape's colour
_MAX_SLOPE = 60.0  # grey levels from one end of the background to the other
_MIN_NOISE, _MAX_NOISE = 4.0, 16.0  # a picture's standard deviation, grey levels


def make(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Makes one split of the data set, the same pictures every time.

    Args:
      split: `train` (5,000 examples) or `test` (1,000), from separate random streams; DataError
        for others.

    Returns:
      images: uint8 [n, 32, 32, 3]; labels: int32 [n], indices into `CLASS_NAMES`, as many of
      each class, in random order.
    """
    checks.check_split("shapes", split, _SPLITS)
    stream, count = _SPLITS[split]
    rng = np.random.default_rng([0, stream])
    labels = rng.permutation(np.arange(count, dtype=np.int32) % len(CLASS_NAMES))
    coverage = _coverage(rng, labels)[..., np.newaxis]  # [n, 32, 32, 1]
    background, foreground = _colours(rng, count)  # [n, 1, 1, 3] each
    background = background + _slope(rng, count)  # [n, 32, 32, 3]
    images = background + coverage * (foreground - background)
    strength = rng.uniform(_MIN_NOISE, _MAX_NOISE, (count, 1, 1, 1)).astype(np.float32)
    images += strength * rng.standard_normal(images.shape, dtype=np.float32)
    return np.clip(np.rint(images), 0, 255).astype(np.uint8), labels


def _coverage(rng: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    """How much of each pixel the shape covers: float32 [n, 32, 32], in [0, 1]."""
    count = len(labels)
    radius = rng.uniform(_MIN_RADIUS, _MAX_RADIUS, (count, 1, 1))
    angle = rng.uniform(0, 2 * np.pi, (count, 1, 1))
    shift = rng.uniform(-_MAX_SHIFT, _MAX_SHIFT, (2, count, 1, 1))
    y, x = (_Y - shift[0]) / radius, (_X - shift[1]) / radius  # [n, 32, 32]
    u = x * np.cos(angle) + y * np.sin(angle)
    v = y * np.cos(angle) - x * np.sin(angle)
    distance = np.empty_like(u)
    for label, signed_distance in enumerate(_SIGNED_DISTANCES.values()):
        members = labels == label
        distance[members] = signed_distance(u[members], v[members])
    # Half a pixel to either side of the outline, coverage falls from 1 to 0: smooth edges.
    return np.clip(0.5 - distance * radius, 0, 1).astype(np.float32)


def _disc(u, v):
    return np.hypot(u, v) - 1


def _square(u, v, half):
    return np.maximum(np.abs(u), np.abs(v)) - half


def _star(u, v):
    """Five points: each lies between two mirrored edges, from a tip at 1 to a notch at 0.42."""
    half_sector = np.pi / 5
    radius = np.hypot(u, v)
    off_tip = np.abs((np.arctan2(v, u) + half_sector) % (2 * half_sector) - half_sector)
    tip = np.array([1.05, 0.0])
    edge = 0.42 * np.array([np.cos(half_sector), np.sin(half_sector)]) - tip
    normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
    return (radius * np.cos(off_tip) - tip[0]) * normal[0] + radius * np.sin(off_tip) * normal[1]


def _checkers(u, v):
    """Cells where exactly one of two crossing sets of stripes lies."""
    across, along = _wave(u), _wave(v)
    cells = np.maximum(np.minimum(across, along), -np.maximum(across, along))
    return np.maximum(_disc(u, v), cells)


def _wave(u, width=0.35):
    """Signed distance to stripes of this width, as far apart as they are wide."""
    return np.abs(u % (2 * width) - width) - width / 2


# The outline of each class: the signed distance to it, negative inside, in units of the shape's
# radius; `u` and `v` are coordinates from the shape's middle along its own axes.
_SIGNED_DISTANCES = {
    "disc": _disc,
    "ring": lambda u, v: np.abs(np.hypot(u, v) - 0.78) - 0.22,
    "square": lambda u, v: _square(u, v, 0.8),
    "frame": lambda u, v: np.abs(_square(u, v, 0.62)) - 0.18,
    "triangle": lambda u, v: np.maximum(np.sqrt(3) / 2 * np.abs(u) + v / 2, -v) - 0.55,
    "cross": lambda u, v: np.maximum(_square(u, v, 0.95), np.minimum(np.abs(u), np.abs(v)) - 0.27),
    "star": _star,
    "crescent": lambda u, v: np.maximum(_disc(u, v), 0.78 - np.hypot(u - 0.45, v)),
    "stripes": lambda u, v: np.maximum(_disc(u, v), _wave(u)),
    "checkers": _checkers,
}
CLASS_NAMES = tuple(_SIGNED_DISTANCES)


def _colours(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Background and foreground, float32 [n, 1, 1, 3] each, well apart in any direction."""
    background = rng.uniform(0, 255, (count, 1, 3))
    candidates = rng.uniform(0, 255, (count, _COLOUR_CANDIDATES, 3))
    farthest = np.linalg.norm(candidates - background, axis=-1).argmax(axis=1)
    foreground = candidates[np.arange(count), farthest].reshape(count, 1, 1, 3)
    return background[:, np.newaxis].astype(np.float32), foreground.astype(np.float32)


def _slope(rng: np.random.Generator, count: int) -> np.ndarray:
    """A plane through 0 for each channel of the background: float32 [n, 32, 32, 3]."""
    rise = rng.uniform(-_MAX_SLOPE, _MAX_SLOPE, (2, count, 1, 1, 3)).astype(np.float32) / 2 / _SIZE
    y, x = _Y[..., np.newaxis].astype(np.float32), _X[..., np.newaxis].astype(np.float32)
    return rise[0] * y + rise[1] * x
