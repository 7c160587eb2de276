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
from laboratory import command_line

COMPARED_RATES = (0.03, 0.1, 0.3)


def main(arguments: Sequence[str]) -> int:
    """Lists, runs one rule, or compares; returns the exit code."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the laboratory is on the CPU everywhere
    from laboratory import problems, rules, speeds

    parser = _make_parser(problems.MODELS, rules, speeds.SPEEDS)
    options = parser.parse(arguments)
    if not arguments:
        show_list(rules.RULES, speeds.SPEEDS)
        return 0
    check(parser, options, problems.MODELS, rules, speeds.SPEEDS)
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the plots need matplotlib: pip install matplotlib")

    from input_pipeline import datasets

    try:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        show(options, rules)
    except datasets.DataError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"{parser.prog}: error: --out={options.out}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _make_parser(models, rules, speeds) -> command_line.Parser:
    parser = command_line.Parser(
        prog="python -m laboratory", description=laboratory.__doc__.splitlines()[0]
    )
    add, number = parser.add_argument, parser.add_number
    add("compare", nargs="?", help="the word compare: run several rules, side by side")
    add("--rule", help=f"{', '.join(rules.RULES)}; compare takes several (default: all)")
    number("workers", 16, int, 1, 256, "simulated workers")
    add("--speeds", default="constant", help=f"{', '.join(speeds)} (default: constant)")
    number("slowdown", 4.0, float, 1, 1000, "what a slow worker's gradient takes")
    number("dies_at", 50.0, float, 0, 1e6, "virtual time of the death in dying")
    number("noticed_after", 10.0, float, 0, 1e6, "virtual time from a death until it is noticed")
    number("message", 0.1, float, 0, 1000, "virtual time of a message, in either direction")
    number("time", 200.0, float, 1, 1e5, "virtual time of a run; a usual gradient takes 1")
    number("batch", 16, int, 1, 4096, "examples of a gradient")
    add("--model", default="two_convolutions", help=f"{', '.join(models)} (default: %(default)s)")
    tried = ",".join(f"{rate:g}" for rate in COMPARED_RATES)
    number("rate", None, float, 1e-6, 100, "learning rate η (default: 0.1)")
    add("--rates", help=f"of compare, which keeps each rule's best (default: {tried})")
    for name, (field, owners) in rule_parameters(rules).items():
        of_type, least, most, text = (
            field.metadata[key] for key in ("type", "least", "most", "text")
        )
        default = "" if field.default is None else f"; default: {field.default:g}"
        only = f"{text} (only {', '.join(owners)}{default})"
        number(name, None, of_type, least, most, only)
    number("seed", 0, int, 0, 2**31 - 1, "of the order of examples, and of the jitter")
    add("--data_dir", help=command_line.DATA_DIR)
    add("--out", default="runs/laboratory", help="folder of what it writes (default: %(default)s)")
    return parser


def rule_parameters(rules) -> dict[str, tuple[dataclasses.Field, list[str]]]:
    """Parameters of rules besides the rate: name to its field and the rules that have it."""
    found = {}
    for name, rule in rules.RULES.items():
        for field in dataclasses.fields(rule):
            if field.name != "rate":
                found.setdefault(field.name, (field, []))[1].append(name)
    return found


def show_list(rules, speeds) -> None:
    """What there is to choose from."""
    for name, rule in rules.items():
        formula = rule.__doc__.strip().splitlines()
        print(f"--rule={name}\n  {formula[0]}")
        print(*(f"    {line.strip()}" for line in formula[2:]), sep="\n")
        print(f"  {rule.source}\n  One model at the end: {rule.model}.\n")
    for name, text in speeds.items():
        print(f"--speeds={name:<12}{text}")


def check(parser, options: argparse.Namespace, models, rules, speeds) -> None:
    """Ends with what is allowed, or leaves `rules` and `rates` in the options."""
    if options.compare not in (None, "compare"):
        parser.error(f"{options.compare}: the one word that is known is compare")
    if options.compare is None and options.rule is None:
        parser.error(f"--rule is missing, or compare; the rules are {', '.join(rules.RULES)}")
    parser.choice("speeds", options.speeds, speeds)
    parser.choice("model", options.model, models)
    if options.compare:
        if options.rate is not None:
            parser.error(f"--rate={options.rate:g}: compare tries several, --rates=0.03,0.1")
        options.rules = options.rule.split(",") if options.rule else list(rules.RULES)
        texts = options.rates.split(",") if options.rates else COMPARED_RATES
        options.rates = [parser.number("rate", text) for text in texts]
    else:
        if options.rates is not None:
            parser.error(f"--rates={options.rates}: only for compare")
        options.rules = [options.rule]
        options.rates = [0.1 if options.rate is None else options.rate]
    for name in options.rules:
        parser.choice("rule", name, rules.RULES)
    for name, (_, owners) in rule_parameters(rules).items():
        value = getattr(options, name)
        if value is not None and not set(owners) & set(options.rules):
            parser.error(f"--{name}={value:g}: only for --rule={' or '.join(owners)}")
    if options.backups is not None and options.backups >= options.workers:
        parser.error(
            f"--backups={options.backups}: must be below --workers={options.workers}, for a step "
            "has to wait for one"
        )


def show(options: argparse.Namespace, rules) -> None:
    """Runs, prints and writes."""
    from laboratory import report
    from lessons import lesson

    began = time.perf_counter()
    lesson.start_runtime()
    problem, data_name = make_problem(options)
    runs = best_runs(options, problem, rules)
    finding = lesson.Finding(
        head=report.HEAD,
        rows=report.table(runs),
        claim="",
        numbers={},
        draw=functools.partial(report.draw, runs=runs, title=title(options, data_name)),
        data=data_name,
    )
    print(f"{finding.table()}\n\n{lesson.conditions(finding, time.perf_counter() - began)}")
    out = Path(options.out)
    name = "compare" if options.compare else options.rule
    lesson.save(finding, out / f"{name}.png", size=(15, 6.5))
    written = [report.as_json(run) for run in runs]
    (out / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(out / f"{name}.png")
    for run in runs:
        if not run.diverged:
            path = out / f"{run.rule}.keras"
            problem.assign(run.weights).save(path)
            print(f"{path}: {run.model}; weights {run.weights_sha256()[:16]}")


def make_problem(options: argparse.Namespace):
    """The network on the images, and the images' name."""
    from laboratory import problems
    from lessons import data, lesson

    images = data.load(lesson.Setup(data_dir=options.data_dir))
    build, _ = problems.MODELS[options.model]
    return problems.Network(build, images, options.batch, options.seed), images.name


def best_runs(options: argparse.Namespace, problem, rules) -> list:
    """Each rule's run, at the best of its rates."""
    from laboratory import report, simulation, speeds
    from lessons import race

    of_workers = speeds.Speeds(
        options.speeds, options.workers, options.slowdown, options.dies_at, options.seed
    )

    def call(name: str, rate: float) -> Callable:
        fields = {field.name for field in dataclasses.fields(rules.RULES[name])} - {"rate"}
        given = {field: getattr(options, field) for field in fields}
        return functools.partial(
            simulation.run,
            name,
            rules.RULES[name](rate, **{k: v for k, v in given.items() if v is not None}),
            problem,
            of_workers,
            until=options.time,
            message=options.message,
            noticed_after=options.noticed_after,
        )

    runs = race.side_by_side([call(name, rate) for name in options.rules for rate in options.rates])
    tried = len(options.rates)
    of_rule = [runs[first : first + tried] for first in range(0, len(runs), tried)]
    return [max(several, key=report.final_accuracy) for several in of_rule]


def title(options: argparse.Namespace, data_name: str) -> str:
    """Of the drawing."""
    return (
        f"{options.workers} workers, speeds: {options.speeds.replace('_', ' ')}, a message takes "
        f"{options.message:g}, batches of {options.batch} ({options.model}, {data_name})"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
