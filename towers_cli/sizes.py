"""Which sizes fit together: of the batch, of its microbatches, and how many towers."""

from collections.abc import Mapping, Sequence

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
      global_batch_size: as asked for.
      num_microbatches: as asked for; 0 where they are left open, and one per tower will do.
      num_towers: of each worker, as asked for.
      num_workers: of the run; they stay.
      most_towers: that a worker can have.

    Returns:
      Setting to the values near the one asked for, any of which will do; where there are two
      settings, any value of one with any of the other. All else stays as asked for.
    """
    all_towers = num_towers * num_workers
    towers = [
        count
        for count in range(1, min(most_towers, MOST_PARTS) + 1)
        if _fit(global_batch_size, num_microbatches, count * num_workers)
    ]
    ways = [{"num_towers": _nearest(num_towers, towers, 4)}]
    unit = num_microbatches or all_towers
    if unit % all_towers == 0 and unit <= MOST_PARTS:
        ways.append({"global_batch_size": _multiples_around(global_batch_size, unit)})
    if num_microbatches:
        parts = range(all_towers, MOST_PARTS + 1, all_towers)
        fitting = [count for count in parts if _fit(global_batch_size, count, all_towers)]
        ways.append({"num_microbatches": _nearest(num_microbatches, fitting, 2)})
        if unit % all_towers and parts and not fitting:
            near = _nearest(num_microbatches, parts, 1)
            batches = _multiples_around(global_batch_size, near[0])
            ways.append({"num_microbatches": near, "global_batch_size": batches})
    return [way for way in ways if all(way.values())]


def ways_to_go_on(
    began: Mapping,
    global_batch_size: int,
    num_microbatches: int,
    num_towers: int,
    num_workers: int = 1,
    most_towers: int = MOST_PARTS,
) -> Ways:
    """The same for a run that goes on, whose batch and microbatches are part of it.

    Args:
      began: the settings that it began with.
      global_batch_size: as in `ways_out`, like the others.
      num_microbatches: 0 for those of the run.
      num_towers: of each worker.
      num_workers: of the run.
      most_towers: that a worker can have.
    """
    sizes = began["global_batch_size"], began["num_microbatches"]
    way = {}
    if not _fit(*sizes, num_towers * num_workers):
        ways = ways_out(*sizes, num_towers, num_workers, most_towers)
        way["num_towers"] = next((w["num_towers"] for w in ways if "num_towers" in w), [])
    if global_batch_size != sizes[0]:
        way["global_batch_size"] = [sizes[0]]
    if num_microbatches not in (0, sizes[1]):
        way["num_microbatches"] = [sizes[1]]
    return [way] if all(way.values()) else []


def as_flags(ways: Ways) -> str:
    """`--num_towers=2 or 4, or --num_microbatches=6 with --global_batch_size=126 or 132`."""
    return ", or ".join(
        " with ".join(f"--{name}={either(values)}" for name, values in way.items()) for way in ways
    )


def either(numbers: Sequence[int]) -> str:
    """`1, 2 or 4`."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _fit(global_batch_size: int, num_microbatches: int, all_towers: int) -> bool:
    parts = num_microbatches or all_towers
    return parts % all_towers == 0 == global_batch_size % parts and parts <= MOST_PARTS


def _nearest(to: int, numbers: Sequence[int], count: int) -> list[int]:
    return sorted(sorted(numbers, key=lambda number: abs(number - to))[:count])


def _multiples_around(number: int, unit: int) -> list[int]:
    below = number // unit * unit
    multiples = [below] if below == number else [below, below + unit]
    return [multiple for multiple in multiples if 0 < multiple <= LARGEST_BATCH]
