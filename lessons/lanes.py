"""The profile of a run as a page to play: one lane for each tower, in milliseconds.

python -m lessons.lanes RUN           draws the newest profile of the run (`--profile_steps=20,21`)
python -m lessons.lanes --site        trains two towers for some steps, and draws those for the site
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import profiles
from laboratory import findings, timeline
from lessons import graph, lesson

SITE = lesson.ROOT / "docs/site/profile.json"  # of which `make docs` makes the page
STEPS = (24, 25)
COMMAND = ["--recipe=shapes", "--num_towers=2", "--microbatch_size=32", "--max_steps=30"]
SHORTEST = 0.02  # milliseconds: of what is drawn

# What an operation's name says of it, and the colour and the words for that; the first that fits.
KINDS = {
    "backward": ("gradient_tape/", "#d55e00", "backward pass"),
    "average": ("average_gradients/", "#009e73", "average of the gradients"),
    "update": ("apply/", "#cc79a7", "update of the weights"),
    "averages": ("moving_averages/", "#e69f00", "moving averages"),
    "forward": ("tower_", "#0072b2", "forward pass, and the rest of a tower"),
    "other": ("", "#8a8f96", "anything else"),
}
_COUNTS = "count/"  # among the first operations of an update; each step has one of each


class NoProfile(Exception):
    """A folder has no profile; the message is for the user."""


def newest(folder: Path) -> Path:
    """The folder of the last profile below a run's folder.

    Raises:
      NoProfile: there is none.
    """
    found = sorted(path.parent for path in folder.glob("train/plugins/profile/*/*.xplane.pb"))
    if not found:
        raise NoProfile(
            f"{folder} has no profile; train.py writes one with --profile_steps, for instance "
            "--profile_steps=20,21"
        )
    return found[-1]


def played(operations: Sequence[profiles.Operation], conditions: str) -> dict[str, Any]:
    """What `timeline.page` plays of these operations, as JSON values.

    Args:
      operations: of one or more steps, from `profiles.operations`.
      conditions: one line for a person.

    Returns:
      lanes: names: a lane for each tower, and one for the rest.
      shades: by kind of operation its colour, and words for it.
      until: milliseconds from the first operation to the end of the last.
      runs: of the one run that there is, `work`: (lane, begin, end, kind, operation); and
        `updates`: the end of each step's last operation that writes a weight or its average.

    Raises:
      NoProfile: there are no operations of a step among them.
    """
    found = sorted(
        (one for one in operations if one.kind not in graph.TRANSFERS), key=lambda one: one.begin
    )
    if not any(one.milliseconds >= SHORTEST for one in found):
        raise NoProfile("the profile has no operations of a step")
    start = found[0].begin
    number = 1 + max(graph.tower_of(one.name) or 0 for one in found)
    work = [
        (
            number if (tower := graph.tower_of(one.name)) is None else tower,
            round(one.begin - start, 3),
            round(one.begin - start + one.milliseconds, 3),
            kind(one.name),
            one.kind,
        )
        for one in found
        if one.milliseconds >= SHORTEST
    ]
    counted = [one for one in found if one.name.startswith(_COUNTS) and "Assign" in one.kind]
    steps = [one.begin - start for one in counted if one.name == counted[0].name]
    writes = [(begin, end) for _, begin, end, kind, _ in work if kind in ("update", "averages")]
    updates = [
        max((end for begin, end in writes if step <= begin < following), default=step)
        for step, following in itertools.pairwise([*steps, math.inf])
    ]
    return {
        "lanes": [*(f"tower {tower}" for tower in range(number)), "the rest"],
        "shades": {name: (colour, words) for name, (_, colour, words) in KINDS.items()},
        "until": max(end for _, _, end, _, _ in work),
        "conditions": conditions,
        "runs": {"profile steps": {"work": work, "updates": updates}},
    }


def kind(name: str) -> str:
    """Which of the KINDS an operation is, by its name."""
    return next(own for own, (part, _, _) in KINDS.items() if part in name)


def main(arguments: Sequence[str]) -> int:
    """Draws; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lessons.lanes", description=__doc__ and __doc__.splitlines()[0]
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("run", nargs="?", type=Path, help="folder of the run")
    chosen.add_argument("--site", action="store_true", help="train, and draw for the site")
    parser.add_argument("--out", type=Path, default=Path("timeline.html"), help="the page to write")
    options = parser.parse_args(arguments)
    if options.site:
        text = json.dumps(_for_the_site(), separators=(",", ":"), allow_nan=False)
        SITE.write_text(text + "\n", encoding="utf-8")
        print(SITE)
        return 0
    try:
        operations = list(profiles.operations(newest(options.run)))
        found = played(operations, f"The newest profile of {options.run}.")
    except NoProfile as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    try:
        options.out.write_text(timeline.page(found), encoding="utf-8")
    except OSError as error:
        print(f"{parser.prog}: error: --out={options.out}: {error.strerror}", file=sys.stderr)
        return 1
    print(options.out)
    return 0


def _for_the_site() -> dict[str, Any]:
    first, last = STEPS
    command = [*COMMAND, f"--profile_steps={first},{last}"]
    with tempfile.TemporaryDirectory() as folder:
        train = [sys.executable, lesson.ROOT / "train.py", *command, f"--train_dir={folder}/run"]
        subprocess.run(train, check=True)
        operations = list(profiles.operations(newest(Path(folder) / "run")))
    made = f"Steps {first} and {last} of train.py {' '.join(COMMAND)}"
    return played(operations, f"{made}; {findings.hardware()}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
