"""Advice on sizes that do not fit together: what is suggested is accepted."""

import itertools
import re

import hypothesis
import hypothesis.strategies as st
import pytest
import scripts

from towers_cli import resolve, settings, sizes


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ("--num_towers=9", "--num_towers=8, or --num_microbatches=16 or 32"),
        (
            "--num_towers=9 --num_microbatches=4",
            "--num_towers=4, or --num_microbatches=16 or 32",
        ),
        (
            "--num_towers=3 --num_microbatches=5",
            "--global_batch_size=125 or 130, or --num_microbatches=4 or 8",
        ),
        (
            "--num_towers=9 --num_microbatches=5 --global_batch_size=7",
            "--num_towers=5 with --global_batch_size=5 or 10",
        ),
        (
            "--global_batch_size=7 --num_towers=8",
            "--num_towers=7, or --global_batch_size=8",
        ),
        (
            "--global_batch_size=127 --num_towers=2",
            "--num_towers=1, or --num_microbatches=127, or --global_batch_size=126 or 128",
        ),
        (
            "--num_towers=5 --workers=a:1,b:1 --worker_index=0",
            "--num_towers=4 on each worker, or --num_microbatches=16 or 32",
        ),
        (
            "--num_microbatches=2 --workers=a:1,b:1,c:1 --worker_index=0",
            "--num_microbatches=4 or 8",
        ),
    ],
)
def test_by_hand(flags, advice):
    said = refusal(flags.split())
    assert said.endswith(f"; give {advice}")
    assert len(advice) <= 160


def test_no_more_towers_than_gpus():
    said = refusal(["--num_towers=9"], num_gpus=3)
    assert said.endswith("; give --num_towers=3, or --num_microbatches=16 or 32")


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ("--num_towers=5", "; give --num_towers=4"),
        ("--num_towers=5 --num_microbatches=4", "; give --num_towers=4"),
        ("--num_microbatches=3", "; give --num_microbatches=4"),
        ("--global_batch_size=126", "; give --global_batch_size=128"),
        (
            "--num_towers=5 --global_batch_size=126",
            "; give --num_towers=4 with --global_batch_size=128",
        ),
        (
            "--workers=a:1,b:1,c:1,d:1,e:1 --worker_index=0",
            " began with 4 microbatch(es)",
        ),
    ],
)
def test_a_run_that_goes_on_keeps_its_batch_and_microbatches(flags, advice):
    earlier = {"settings": {"global_batch_size": 128, "num_microbatches": 4}}
    assert refusal(flags.split(), earlier).endswith(advice)


@hypothesis.settings(deadline=None)
@hypothesis.given(
    global_batch_size=st.integers(1, 300) | st.sampled_from([2**20 - 1, 2**20]),
    num_microbatches=st.just(0) | st.integers(1, 40) | st.just(1024),
    num_towers=st.integers(1, 40) | st.sampled_from([1000, 1023, 1024]),
    num_workers=st.integers(1, 5),
    num_gpus=st.sampled_from([0, 0, 1, 8]),
)
def test_whatever_is_suggested_is_accepted(
    global_batch_size, num_microbatches, num_towers, num_workers, num_gpus
):
    asked = {
        "global_batch_size": global_batch_size,
        "num_microbatches": num_microbatches,
        "num_towers": min(num_towers, num_gpus or num_towers),
    }
    workers = [f"--workers={','.join(f'w:{n + 1}' for n in range(num_workers))}"]
    workers = [*workers, "--worker_index=0"] if num_workers > 1 else []
    said = refusal([*flags_of(asked), *workers], num_gpus=num_gpus)
    if said is None:
        return
    suggested = suggestions(said)
    # A batch that fits, or other microbatches, where there may be as many as there are towers.
    assert suggested or asked["num_towers"] * num_workers > 1024
    for changed in suggested:
        assert asked.items() & changed.items() == set()
        together = [*flags_of(asked | changed), *workers]
        assert refusal(together, num_gpus=num_gpus) is None, (said, changed)
        assert (asked | changed)["num_towers"] <= (num_gpus or 1024)


def flags_of(values: dict[str, int]) -> list[str]:
    """As they are typed."""
    return [f"--{name}={value}" for name, value in values.items()]


def refusal(flags: list[str], earlier=None, num_gpus: int = 0) -> str | None:
    """What is said to sizes; None where they are accepted."""
    try:
        resolve.resolved(scripts.settings_of(*flags), earlier, num_gpus=num_gpus, cores=2)
    except settings.SettingsError as error:
        return str(error)
    return None


def suggestions(said: str) -> list[dict[str, int]]:
    """Every combination of flags that a refusal names."""
    ways = said.partition("; give ")[2]
    found = []
    for way in filter(None, re.split(r", or (?=--)", ways)):
        choices = [
            [(name, int(number)) for number in re.findall(r"\d+", values)]
            for name, values in re.findall(r"--(\w+)=([\d, or]+)", way)
        ]
        found += [dict(chosen) for chosen in itertools.product(*choices)]
    return found


def test_limits_are_those_of_the_settings():
    for name, most in (
        ("num_towers", sizes.MOST_PARTS),
        ("num_microbatches", sizes.MOST_PARTS),
        ("global_batch_size", sizes.LARGEST_BATCH),
    ):
        settings.check_value(name, most)
        with pytest.raises(settings.SettingsError):
            settings.check_value(name, most + 1)


@pytest.mark.parametrize("flag", ["--mixup_alpha=0.2", "--cutmix_alpha=1"])
def test_images_that_are_mixed_come_in_pairs(flag):
    sizes = ("--global_batch_size=24", "--num_microbatches=8")
    said = refusal([flag, *sizes])
    assert said.startswith(f"{flag}: mixes the images of a microbatch in pairs") and "has 3" in said
    assert refusal([flag, "--global_batch_size=24", "--num_microbatches=12"]) is None
    earlier = {"settings": {"num_microbatches": 8, "intra_op_threads": 1}}
    kept = refusal([flag, "--global_batch_size=24"], earlier)
    assert "began with 8 microbatch(es)" in kept
    [advice] = suggestions(said)
    assert refusal([flag, *flags_of(advice), "--num_microbatches=8"]) is None
    assert refusal([flag, "--global_batch_size=24"]) is None  # by default 6 microbatches
    assert "has 25" in refusal([flag, "--global_batch_size=25", "--num_microbatches=1"])
