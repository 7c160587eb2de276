"""The laboratory's command; see laboratory/__init__.py."""

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import laboratory
from laboratory import flags, report, rules, simulation, speeds, timeline
from towers_cli import command_line

MODELS = ("two_convolutions", "cifarnet")  # of network.MODELS, which imports TensorFlow
COMPARED_RATES = [0.03, 0.1, 0.3]
# Flags that only some speeds have: these speeds, the default, the largest value, and the meaning.
OF_SPEEDS = {
    "slowdown": (("straggler", "two_speeds"), 4.0, 1000, "time of a slow worker's gradient"),
    "dies_at": (("dying",), 50.0, 1e6, "time of the death"),
    "noticed_after": (("dying",), 10.0, 1e6, "time from the death until it is noticed"),
}


def main(arguments: Sequence[str]) -> int:
    """Lists, runs one rule, or compares; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if not arguments:
        show_list()
        return 0
    check(parser, options)
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the plots need matplotlib: pip install matplotlib")
    folder = Path(options.out) / ("compare" if options.compare else options.rules[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"{parser.prog}: error: --out={options.out}: {error.strerror}", file=sys.stderr)
        return 1
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the laboratory runs on the CPU everywhere
    import towers  # noqa: F401  before what imports TensorFlow: it sets TensorFlow up
    from input_pipeline import datasets

    try:
        problem, data_name = make_problem(options)
    except datasets.DataError as error:
        parser.error(command_line.printable(error))
    try:
        show(options, problem, data_name, folder)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"{parser.prog}: error: {folder}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def make_parser() -> command_line.Parser:
    """The command's flags."""
    about = laboratory.__doc__ and laboratory.__doc__.splitlines()[0]
    parser = command_line.Parser("python -m laboratory", about)
    add, number = parser.add_argument, flags.number
    known, default = ", ".join(rules.RULES), "(default: %(default)s)"
    add("compare", nargs="?", type=flags.one_of(["compare"]), help="run several rules side by side")
    several = flags.each(flags.one_of(rules.RULES))
    add("--rule", type=several, help=f"{known}; compare takes several (default: all)")
    add("--workers", type=number(int, 1, 256), default=16, help=f"simulated workers {default}")
    add("--speeds", type=flags.one_of(speeds.SPEEDS), default="constant",
        help=f"{', '.join(speeds.SPEEDS)} {default}")  # fmt: skip
    for name, (owners, value, most, text) in OF_SPEEDS.items():
        only = f"only {', '.join(owners)}; default: {value:g}"
        add(f"--{name}", type=number(float, name == "slowdown", most), help=f"{text} ({only})")
    add("--message", type=number(float, 0, 1000), default=0.1,
        help=f"virtual time of a message, in either direction {default}")  # fmt: skip
    add("--time", type=number(float, 1, 1e5), default=200.0,
        help=f"virtual time of a run; a usual gradient takes 1 {default}")  # fmt: skip
    add("--batch", type=number(int, 1, 4096), default=16, help=f"examples of a gradient {default}")
    names = f"{', '.join(MODELS)} {default}"
    add("--model", type=flags.one_of(MODELS), default=MODELS[0], help=names)
    fields, compared = rule_parameters(), ",".join(map(str, COMPARED_RATES))
    add("--rates", type=flags.each(_type_of(fields["rate"][0])),
        help=f"of compare, which keeps each rule's best (default: {compared})")  # fmt: skip
    for name, (field, owners) in fields.items():
        only = "not compare" if name == "rate" else f"only {', '.join(owners)}"
        value = "" if field.default is None else f"; default: {field.default:g}"
        text = f"{field.metadata['text']} ({only}{value})"
        add(f"--{name}", type=_type_of(field), help=text)
    add("--seed", type=number(int, 0, 2**31 - 1), default=0,
        help=f"of examples and of the jitter {default}")  # fmt: skip
    add("--data_dir", help=flags.DATA_DIR)
    add("--export", action="store_true", help="write timeline.html, which plays what workers do")
    add("--out", default="runs/laboratory", help=f"folder of what it writes {default}")
    return parser


def _type_of(field: dataclasses.Field) -> Callable[[str], int | float]:
    return flags.number(*(field.metadata[key] for key in ("type", "least", "most")))


def rule_parameters() -> dict[str, tuple[dataclasses.Field, list[str]]]:
    """Parameters of rules: name to the field and the rules that have it."""
    parameters = {}
    for name, rule in rules.RULES.items():
        for field in dataclasses.fields(rule):
            parameters.setdefault(field.name, (field, []))[1].append(name)
    return parameters


def show_list() -> None:
    """Prints the rules and speeds to choose from."""
    for name, rule in rules.RULES.items():
        formula = rule.__doc__.strip().splitlines()
        print(f"--rule={name}\n  {formula[0]}")
        print(*(f"    {line.strip()}" for line in formula[2:]), sep="\n")
        for field in dataclasses.fields(rule):
            default = "" if field.default is None else f"; default: {field.default:g}"
            print(f"  --{field.name}: {field.metadata['text']}{default}")
        print(f"  {rule.source}\n  One model at the end: {rule.model}.\n")
    for name, text in speeds.SPEEDS.items():
        print(f"--speeds={name:<12}{text}")


def check(parser: command_line.Parser, options: argparse.Namespace) -> None:
    """Ends the command and says what is allowed, or adds `rules` and `rates` to the options."""
    if options.compare:
        if options.rate is not None:
            parser.error(f"--rate={options.rate:g}: compare tries several, --rates=0.03,0.1")
        options.rules = list(dict.fromkeys(options.rule or rules.RULES))
        options.rates = options.rates or COMPARED_RATES
    else:
        if len(options.rule or ()) != 1:
            known = ", ".join(rules.RULES)
            parser.error(f"--rule is missing, or compare; it is one of {known}")
        if options.rates:
            parser.error("--rates: only for compare")
        options.rules = options.rule
        options.rates = [rules.Rule.rate if options.rate is None else options.rate]
    chosen = [("rule", owners, name) for name, (_, owners) in rule_parameters().items()]
    chosen += [("speeds", owners, name) for name, (owners, *_) in OF_SPEEDS.items()]
    asked = {"rule": options.rules, "speeds": [options.speeds]}
    for of, owners, name in chosen:
        value = getattr(options, name)
        if value is not None and not set(owners) & set(asked[of]):
            parser.error(f"--{name}={value:g}: only for --{of}={' or '.join(owners)}")
    if options.backups is not None and options.backups >= options.workers:
        parser.error(
            f"--backups={options.backups}: must be below --workers={options.workers}, because a "
            "step has to wait for one worker"
        )


def make_problem(options: argparse.Namespace):
    """The network on the images, and the images' name."""
    from laboratory import data, findings, network

    findings.start_runtime()
    images = data.load(findings.Setup(data_dir=options.data_dir))
    build = network.MODELS[options.model]
    return network.Network(build, images, options.batch, options.seed), images.name


def show(options: argparse.Namespace, problem, data_name: str, folder: Path) -> None:
    """Runs, prints and writes."""
    from laboratory import findings

    began = time.perf_counter()
    runs = best_runs(options, problem)
    head, rows = report.table(runs)
    shown = title(options, data_name)
    finding = findings.Finding(
        head, rows, {}, lambda figure: report.draw(figure, runs, shown), data_name
    )
    print(f"{finding.table()}\n\n{findings.conditions(finding, time.perf_counter() - began)}")
    findings.save(finding, folder / "plot.png", size=(11, 6.5))
    print(folder / "plot.png")
    if options.export:
        raced = {(run.rule, options.speeds): timeline.as_json(run) for run in runs}
        race = timeline.race_of(raced, options.workers, options.time, options.message, shown)
        (folder / "timeline.html").write_text(timeline.page(race), encoding="utf-8")
        print(folder / "timeline.html")
    written = {"settings": settings_of(options, data_name), "runs": []}
    for run in runs:
        file = save_model(run, problem, folder)
        written["runs"].append(report.as_json(run) | {"file": file})
    text = json.dumps(written, indent=1, allow_nan=False)
    (folder / "runs.json").write_text(f"{text}\n", encoding="utf-8")


def save_model(run: simulation.Run, problem, folder: Path) -> str | None:
    """Writes the one model of a run, and prints which it is; returns the file's name."""
    if run.diverged:
        print(f"{run.rule}: diverged, there is no model")
        return None
    if not run.updates:
        print(f"{run.rule}: no update was made in this time, there is no model")
        return None
    path = folder / f"{run.rule}.keras"
    problem.assign(run.weights).save(path)
    print(
        f"{path}: {run.model}, accuracy {run.end.accuracy:.1%}, weights {run.weights_sha256()[:16]}"
    )
    return path.name


def settings_of(options: argparse.Namespace, data_name: str) -> dict:
    """The settings that repeat a run."""
    kept = {name: value for name, value in vars(options).items() if value is not None}
    for name in ("compare", "out", "data_dir", "rule", "export"):
        kept.pop(name, None)
    return kept | {"data": data_name}


def best_runs(options: argparse.Namespace, problem) -> list[simulation.Run]:
    """Each rule's run, at the best of its rates."""
    from laboratory import race

    calls = [
        functools.partial(one_run, options, problem, name, rate)
        for name in options.rules
        for rate in options.rates
    ]
    runs, tried = race.side_by_side(calls), len(options.rates)
    of_rule = [runs[first : first + tried] for first in range(0, len(runs), tried)]
    return [max(several, key=report.final_accuracy) for several in of_rule]


def one_run(options: argparse.Namespace, problem, name: str, rate: float) -> simulation.Run:
    """Runs a rule at a rate."""
    parameters = {field.name for field in dataclasses.fields(rules.RULES[name])} - {"rate"}
    chosen = {field: getattr(options, field) for field in parameters}
    of_speeds = {
        flag: default if getattr(options, flag) is None else getattr(options, flag)
        for flag, (_, default, *_) in OF_SPEEDS.items()
    }
    noticed_after = of_speeds.pop("noticed_after")
    return simulation.run(
        name,
        rules.RULES[name](rate, **{k: v for k, v in chosen.items() if v is not None}),
        problem,
        speeds.Speeds(options.speeds, options.workers, **of_speeds, seed=options.seed),
        until=options.time,
        message=options.message,
        noticed_after=noticed_after,
    )


def title(options: argparse.Namespace, data_name: str) -> str:
    """The title of the drawing."""
    return (
        f"{options.workers} workers, speeds: {options.speeds.replace('_', ' ')}, a message takes "
        f"{options.message:g}, batches of {options.batch} ({options.model}, {data_name})"
    )


if __name__ == "__main__":
    sys.exit(flags.run(main, sys.argv[1:]))
