"""Which sizes fit together: of the batch, of its microbatches, and how many towers."""

from collections.abc import Mapping, Sequence

from towers.support import shares

MOST_PARTS = 1024  # towers of a worker, or microbatches
LARGEST_BATCH = 2**20

Ways = list[dict[str, list[int]]]


def ways_out(
    global_batch_size: int,
    num_microbatches: int,
    num_towers: int,
    num_workers: int = 1,
    most_towers: int = MOST_PARTS,
) -> Ways:
    """What to change of sizes that do not fit together.

    Args:
      global_batch_size: as given.
      num_microbatches: as given; 0 where they are left open.
      num_towers: of all workers together, as given.
      num_workers: of the run; they stay.
      most_towers: that a worker can have.

    Returns:
      Setting to the values near the given one, any of which will do; where there are two settings,
      any value of one with any of the other. All else stays as given.
    """
    parts = num_microbatches or shares.default_microbatches(global_batch_size)
    divides = global_batch_size % parts == 0
    batches = {
        "global_batch_size": _batches_around(global_batch_size, num_microbatches, num_towers)
    }
    fewer = {}
    if num_towers > parts:
        fewer["num_towers"] = [min(parts // num_workers, most_towers)][: parts // num_workers]
    fitting = [
        count for count in range(num_towers, MOST_PARTS + 1) if global_batch_size % count == 0
    ]
    ways = [
        fewer if divides else fewer | batches,
        {"num_microbatches": _nearest(num_microbatches, fitting, 2)},
        {} if fewer and num_microbatches else batches,
    ]
    different = [way for place, way in enumerate(ways) if way and way not in ways[:place]]
    found = [way for way in different if all(way.values())]
    if not found and num_towers <= MOST_PARTS:
        batches = _batches_around(global_batch_size, num_towers, num_towers)
        found = [{"num_microbatches": [num_towers], "global_batch_size": batches}]
    return found


def ways_to_resume(
    began: Mapping,
    global_batch_size: int,
    num_microbatches: int,
    num_towers: int,
    num_workers: int = 1,
    most_towers: int = MOST_PARTS,
) -> Ways:
    """The same for a run that continues, whose batch and microbatches are part of it.

    Args:
      began: the settings that it began with.
      global_batch_size: as in `ways_out`, like the others.
      num_microbatches: 0 for those of the run.
      num_towers: of all workers together.
      num_workers: of the run.
      most_towers: that a worker can have.
    """
    batch, parts = began["global_batch_size"], began["num_microbatches"]
    way = {}
    if num_towers > parts:
        way["num_towers"] = [min(parts // num_workers, most_towers)][: parts // num_workers]
    if global_batch_size != batch:
        way["global_batch_size"] = [batch]
    if num_microbatches not in (0, parts):
        way["num_microbatches"] = [parts]
    return [way] if all(way.values()) else []


def as_flags(ways: Ways, each: str = "") -> str:
    """`--num_towers=2 or 4, or --num_microbatches=6 with --global_batch_size=126 or 132`.

    Args:
      ways: from `ways_out`, or `ways_to_resume`.
      each: added to a number of towers, which are a worker's own.
    """

    def flag(name: str, values: Sequence[int]) -> str:
        return f"--{name}={either(values)}{each if name == 'num_towers' else ''}"

    return ", or ".join(" with ".join(flag(*setting) for setting in way.items()) for way in ways)


def either(numbers: Sequence[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _nearest(to: int, numbers: Sequence[int], count: int) -> list[int]:
    return sorted(sorted(numbers, key=lambda number: abs(number - to))[:count])


def _batches_around(number: int, num_microbatches: int, num_towers: int) -> list[int]:
    """The next smaller and the next larger batch that so many microbatches or towers can share."""

    def fits(batch: int) -> bool:
        if num_microbatches:
            return batch % num_microbatches == 0
        return shares.default_microbatches(batch) >= num_towers

    near = max(num_microbatches, shares.MOST_BY_DEFAULT)
    below = range(number, max(number - near, 0), -1)
    above = range(number + 1, min(number + near, LARGEST_BATCH) + 1)
    found = [next(filter(fits, way), None) for way in (below, above)]
    return [batch for batch in found if batch]
