"""The loop over towers only builds a graph; what runs is the graph, with towers side by side."""

import functools
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from unittest import mock

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import profiles
from laboratory import data, findings
from lessons import lesson
from towers import devices, machine, microbatch, networks, step
from towers.runs import summaries

import keras  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "The loop over GPUs looks serial. Is it?"
SHAPE, CLASSES, BATCH = (24, 24, 3), 10, 128
TOWERS = (1, 2, 4)
PROFILED = 7  # steps; the one that took the median time is shown
TRANSFERS = ("_Send", "_Recv")  # between devices; the receiver may continue to work within a _Send


FULL_NETWORK = functools.partial(networks.build, "cifarnet", SHAPE, CLASSES)


def run(setup: findings.Setup, *, network=FULL_NETWORK, steps=20) -> findings.Finding:
    """Builds and runs steps of 1, 2 and 4 towers; profiles two of them."""
    images = data.load(setup)
    batches = list(images.training_batches(BATCH, steps))

    def program_on(num_towers: int) -> step.Program:
        return data.program(network(), keras.optimizers.SGD(0.01), num_towers)

    built = {k: build_and_run(program_on(k), batches) for k in TOWERS}
    in_graph, one_by_one = two_ways(network(), devices.choose(2))
    milliseconds = times([in_graph, one_by_one], batches)
    program = program_on(2)
    ways = [lambda *batch: program(batch, BATCH // 2), one_by_one]
    seen = rounds_of_profiles(ways, batches[0])
    step_seen, loop_seen = (median_call(of_way) for of_way in seen)
    largest = built[TOWERS[-1]]
    return findings.Finding(
        head=(
            "towers",
            "the loop's body ran, building",
            f"in the next {steps} steps",
            "operations of each tower",
            "of these, need another tower's",
            "towers that the update needs",
        ),
        rows=[
            [str(k), str(of.building), str(of.running), str(of.operations[0])]
            + [str(of.waiting), str(of.needed)]
            for k, of in built.items()
        ],
        answer=answer(largest),
        claim=(
            "In a profiled step of two towers both had an operation running for "
            f"{overlap(step_seen):.0%} of the less busy one's time; when a Python loop called them "
            "one after the other, for "
            f"{overlap(loop_seen):.0%}. The two towers took {milliseconds[0]:.0f} ms in one graph "
            f"and {milliseconds[1]:.0f} ms in that loop (cores: "
            f"{machine.available_cores()})."
        ),
        numbers={
            "built": built,
            "overlaps": [[overlap(events) for events in of_way] for of_way in seen],
            "towers seen": [{event.tower for event in events} for events in seen[0]],
        },
        draw=lambda figure: draw(figure, step_seen, loop_seen),
        data=images.name,
    )


def answer(built: "Built") -> str:
    """In one sentence, from the graph of the most towers."""
    parallel = built.running == 0 == built.waiting
    return (
        "The loop is serial but it only builds the graph, once; in the graph no tower waits for "
        "another, so the towers run side by side."
        if parallel
        else "Here it was: a tower waited for another, or the loop ran again in each step."
    )


class Built(NamedTuple):
    """What is known of a step's graph.

    building: times that the body of the loop over towers ran while the graph was built.
    running: the same, in the steps after that.
    operations: of each tower.
    waiting: those that cannot start before some operation of another tower.
    needed: towers that the update waits for.
    """

    building: int
    running: int
    operations: list[int]
    waiting: int
    needed: int


def build_and_run(program: step.Program, batches) -> Built:
    """Counts how often the loop's body calls `backward`; then looks at the graph.

    Each tower has one microbatch, so that what is side by side is towers.
    """
    num_towers = len(program.tower_devices)
    size = BATCH // num_towers
    body = vars(program.pass_)["backward"] = mock.Mock(wraps=program.pass_.backward)
    graph = written_out(program.trace(batches[0], size))
    building = body.call_count
    for batch in batches:
        program(batch, size)
    running = body.call_count - building
    tower_operations = [operations_of(graph, index) for index in range(num_towers)]
    update = [op for op in graph.get_operations() if op.name.startswith("apply/")]
    return Built(
        building=building,
        running=running,
        operations=[len(operations) for operations in tower_operations],
        waiting=waiting(tower_operations),
        needed=sum(bool(operations & needed_for(update)) for operations in tower_operations),
    )


def written_out(function) -> tf.Graph:
    """The graph of a step as it runs: each call of a microbatch is replaced by its operations."""
    with tf.Graph().as_default() as drawn:
        tf.graph_util.import_graph_def(summaries.graph_with_calls_inlined(function), name="")
    return drawn


def tower_of(name: str) -> int | None:
    """The tower in whose scope an operation is, in any scope around it."""
    match = re.search(r"(?:^|/)tower_(\d+)/", name)
    return int(match[1]) if match else None


def operations_of(graph: tf.Graph, index: int) -> set[tf.Operation]:
    """All of one tower."""
    return {operation for operation in graph.get_operations() if tower_of(operation.name) == index}


def waiting(tower_operations: Sequence[set[tf.Operation]]) -> int:
    """How many operations need one of another tower, directly or through any others."""
    return sum(
        bool(needed_for([operation]) & (set.union(*tower_operations) - operations))
        for operations in tower_operations
        for operation in operations
    )


def needed_for(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """These operations and all that they depend on, by inputs and by control inputs."""
    visited, to_visit = set(), list(operations)
    while to_visit:
        operation = to_visit.pop()
        if operation not in visited:
            visited.add(operation)
            to_visit += [tensor.op for tensor in operation.inputs]
            to_visit += operation.control_inputs
    return visited


def two_ways(model: keras.Model, tower_devices: Sequence[str]) -> tuple[Callable, Callable]:
    """The loop over towers within one `tf.function`, and around one for each tower."""
    data.compile_classifier(model, keras.optimizers.SGD())
    one_pass = microbatch.Microbatch(model, training=True, jit_compile=False)
    bodies = [
        functools.partial(one_tower, one_pass, index, device)
        for index, device in enumerate(tower_devices)
    ]
    in_graph = tf.function(functools.partial(loop, bodies), autograph=False)
    one_by_one = functools.partial(loop, [tf.function(body, autograph=False) for body in bodies])
    return in_graph, one_by_one


def loop(bodies: Sequence[Callable], images: tf.Tensor, labels: tf.Tensor) -> list:
    """Calls every tower with its part of the batch."""
    parts = zip(tf.split(images, len(bodies)), tf.split(labels, len(bodies)), strict=True)
    return [body(*part) for body, part in zip(bodies, parts, strict=True)]


def one_tower(one_pass: microbatch.Microbatch, index: int, device: str, images, labels) -> list:
    """The gradients of one tower."""
    model = one_pass.model
    with tf.device(device), tf.name_scope(f"tower_{index}"):
        weights = [tf.convert_to_tensor(weight.value) for weight in model.trainable_variables]
        state = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]
        number = tf.constant(index, tf.int64)
        return one_pass.backward(weights, state, number, (images, labels), None).gradients


def times(ways: Sequence[Callable], batches) -> list[float]:
    """The median milliseconds of each way, in alternation; the first call builds the graph."""
    milliseconds = [[] for _ in ways]
    for batch in batches:
        for way, calls in zip(ways, milliseconds, strict=True):
            began = time.perf_counter()
            way(*batch)
            calls.append(1000 * (time.perf_counter() - began))
    return [statistics.median(calls[1:]) for calls in milliseconds]


class Event(NamedTuple):
    """An operation at work, in milliseconds; `tower` is None for one of no tower."""

    begin: float
    end: float
    tower: int | None


def rounds_of_profiles(ways: Sequence[Callable], batch) -> list[list[list[Event]]]:
    """[way][call]; the ways alternate, and each call has its own profile."""
    for way in ways:
        way(*batch)  # builds
    rounds = [[profile(way, batch) for way in ways] for _ in range(PROFILED)]
    return list(zip(*rounds, strict=True))


def profile(step: Callable, batch) -> list[Event]:
    """The operations of one call, from TensorFlow's profiler; times count from the first one."""
    _, operations = profiles.recorded(lambda: step(*batch))
    computed = [operation for operation in operations if operation.kind not in TRANSFERS]
    first = min(operation.begin for operation in computed)
    return [
        Event(o.begin - first, o.begin - first + o.milliseconds, tower_of(o.name))
        for o in sorted(computed, key=lambda operation: operation.begin)
    ]


Spans = list[tuple[float, float]]  # (begin, end), in order, without overlaps


def busy(events: Iterable[Event]) -> Spans:
    """When at least one of these operations was running."""
    spans: Spans = []
    for begin, end in sorted((event.begin, event.end) for event in events):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((begin, end))
    return spans


def overlap(events: Sequence[Event]) -> float:
    """The share of the less busy tower's time in which the other was busy too; from 0 to 1."""
    first, second = (busy(event for event in events if event.tower == k) for k in (0, 1))
    both = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in first
        for other_begin, other_end in second
    )
    return both / min(sum(end - begin for begin, end in spans) for spans in (first, second))


def median_call(calls: Sequence[list[Event]]) -> list[Event]:
    """The one whose time is the median."""
    return sorted(calls, key=lambda events: max(event.end for event in events))[len(calls) // 2]


def draw(figure, step: Sequence[Event], one_by_one: Sequence[Event]) -> None:
    """The time lines of a step, and of its towers called one after the other."""
    above, below = figure.subplots(2, 1, sharex=True, sharey=True)
    lanes = {0: "#0072b2", 1: "#d55e00", None: "#6a6a6a"}
    for axes, events in ((above, step), (below, one_by_one)):
        for place, (tower, colour) in enumerate(lanes.items()):
            spans = busy(event for event in events if event.tower == tower)
            bars = [(begin, end - begin) for begin, end in spans]
            axes.broken_barh(bars, (place - 0.4, 0.8), color=colour, linewidth=0)
    above.set(title="A step: one graph with both towers")
    above.set_yticks(range(len(lanes)), ["tower 0", "tower 1", "the rest"])
    above.invert_yaxis()
    below.set(title="A Python loop: one call for each tower", xlabel="ms")


LESSON = lesson.Lesson("graph", QUESTION, run)
