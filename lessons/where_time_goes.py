"""What the time of a step goes into, who waits for whom, and what one more tower gains."""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import operator
import statistics
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

import towers  # noqa: F401  before Keras: it sets TensorFlow up
from benchmarks import profiles
from input_pipeline import datasets
from laboratory import data, findings
from lessons import lesson
from towers import devices, machine, moving_averages, networks, weight_decay

import keras  # isort: skip
import numpy as np  # isort: skip
import tensorflow as tf  # isort: skip

QUESTION = "100 % CPU and 60 % GPU"
SHAPE, CLASSES, BATCH = (24, 24, 3), 10, 128
LEAD_IN = 3  # steps before those that count

FIXED, AHEAD = "one fixed batch", "whole batches, ahead"
SINGLE, NONE_AHEAD = "image by image, ahead", "image by image, none ahead"
TRAINED = ((1, FIXED), (1, AHEAD), (1, NONE_AHEAD), (2, AHEAD))  # (towers, input)
BUSY = 0.6  # share of the time, of a device fed with images made one by one, as in the question
TIME_STEPS, SEQUENCES, FEATURES, UNITS = 64, 32, 16, 32  # of a small recurrent network
DEVICE_BATCH = 512  # of the stand-in; if smaller, the time to hand over a batch shows more


class Timed(NamedTuple):
    """Means of some steps.

    waited: milliseconds that a step waited for its batch.
    step: milliseconds of a step, including the wait.
    cores: that the process used, on average.
    """

    waited: float
    step: float
    cores: float


STEP_TIME = operator.attrgetter("step")


class Step(NamedTuple):
    """What the milliseconds of a step go into.

    input: the towers wait for their batch.
    copy: of the batch and the weights to the towers, and of their gradients back.
    compute: forward and backward passes, towers side by side.
    reduce: the average of the towers' gradients, and the check that it is finite.
    update: of weights, moving averages and metrics.
    rest: between operations; one tower waits for another.
    """

    input: float = 0.0
    copy: float = 0.0
    compute: float = 0.0
    reduce: float = 0.0
    update: float = 0.0
    rest: float = 0.0

    @property
    def busy(self) -> float:
        """The share of the time in which towers compute."""
        return self.compute / sum(self)


def run(setup: findings.Setup, *, turns=5, profiles=6, steps=8, processes=True) -> findings.Finding:
    """Measures inputs, takes steps of towers apart, and predicts those with one more tower.

    Args:
      setup: of the images.
      turns: of each side.
      profiles: of a step on so many towers.
      steps: in a turn of an input.
      processes: whether towers have processes of their own.
    """
    images, cores = data.load(setup), machine.available_cores()
    alone, behind = of_inputs(images, turns, steps)
    rates = {name: 1000 * DEVICE_BATCH / timed.step for name, timed in alone.items()}
    trained, of_profile = on_towers(setup, turns, profiles, processes)
    parts = {(k, name): taken_apart(timed, of_profile[k]) for (k, name), timed in trained.items()}
    of_batch = alone[AHEAD].step * alone[AHEAD].cores * BATCH / DEVICE_BATCH
    expected = predicted(parts[1, FIXED], 2, cores, of_batch)
    launches = of_launches(profiles)
    return finding(rates, behind, trained, parts, expected, launches, images.name)


def finding(
    rates: dict, behind: dict, trained: dict, parts: dict, expected: Step, launches: dict, name: str
) -> findings.Finding:
    """The tables and the answer."""
    return findings.Finding(
        head=("ms of a step", "input", "compute", "all else", "sum", "busy", "CPU"),
        rows=[as_row(*row) for row in rows(trained, parts, expected, behind)],
        more=[launch_table(launches)],
        answer=answer(behind, launches),
        numbers={"steps": parts, "rates": rates, "launches": launches},
        draw=lambda figure: draw(figure, rates, behind, parts, expected),
        data=name,
    )


def of_inputs(images: data.Images, turns: int, steps: int) -> tuple[dict, dict]:
    """Each input by itself: name to Timed; with devices: name to speed to (Step, cores)."""
    inputs = pipelines(images, DEVICE_BATCH)
    names = (AHEAD, SINGLE, NONE_AHEAD)

    def before(name, device_rate, windows=1):
        device = functools.partial(stand_in, DEVICE_BATCH / device_rate)
        return quickest(inputs[name], device, windows, steps)

    of_loop = before(SINGLE, math.inf, windows=5)
    device_rate = 1000 * DEVICE_BATCH / of_loop.step / BUSY
    device_rates = (device_rate / 2, device_rate, 4 * device_rate)
    sides = itertools.product(names, (math.inf, *device_rates))
    timed = by_turns({side: functools.partial(before, *side) for side in sides}, turns)
    alone = {name: timed[name, math.inf] for name in names}
    behind = {
        name: {rate: of_device(timed[name, rate], rate) for rate in device_rates} for name in names
    }
    return alone, behind


def pipelines(images: data.Images, batch_size: int) -> dict[str, Iterable]:
    """Endless batches by name: the same one, this package's, and two made image by image."""
    ahead = images.training_batches(batch_size, 10**9)
    # Threads of its own: otherwise it would wait while the towers use all of their process's.
    threads = tf.data.Options()
    threads.threading.private_threadpool_size = machine.available_cores()
    one_by_one = functools.partial(image_by_image, images.train, batch_size)
    signature = (
        tf.TensorSpec([batch_size, *SHAPE], tf.float32),
        tf.TensorSpec([batch_size], tf.int64),
    )
    with tf.device(devices.HOST):
        single = tf.data.Dataset.from_generator(one_by_one, output_signature=signature)
    return {
        FIXED: itertools.repeat(next(iter(ahead))),
        AHEAD: ahead.with_options(threads),
        SINGLE: single.prefetch(1),
        NONE_AHEAD: one_by_one(),
    }


def image_by_image(split: datasets.ImageArrays, batch_size: int) -> Iterator[tuple]:
    """Batches as a loop over images makes them."""
    random = np.random.default_rng(0)
    for first in itertools.cycle(range(0, len(split.images) - batch_size + 1, batch_size)):
        chosen = slice(first, first + batch_size)
        batch = np.stack([distorted(image, random) for image in split.images[chosen]])
        yield batch, split.labels[chosen].astype(np.int64)


def distorted(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The tutorial's distortions of one image."""
    height, width, _ = SHAPE
    top, left = random.integers(0, [image.shape[0] - height + 1, image.shape[1] - width + 1])
    pixels = image[top : top + height, left : left + width].astype(np.float32)
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    pixels = pixels + np.float32(random.uniform(-63, 63))
    means = pixels.mean(axis=(0, 1))
    pixels = (pixels - means) * np.float32(random.uniform(0.2, 1.8)) + means
    return (pixels - pixels.mean()) / max(pixels.std(), pixels.size**-0.5)


def by_turns(sides: Mapping[Hashable, Callable[[], Timed]], turns: int) -> dict[Hashable, Timed]:
    """The fastest turn of each side: other programs on these cores can only add to the time."""
    timed = [{name: side() for name, side in sides.items()} for _ in range(turns)]
    return {name: min((of[name] for of in timed), key=STEP_TIME) for name in sides}


def quickest(batches: Iterable, step: Callable, windows: int, steps: int) -> Timed:
    """The fastest of some windows of steps, after steps that fill the buffers."""
    batches = iter(batches)
    for _ in range(LEAD_IN):
        step(*next(batches))
    return min((window(batches, step, steps) for _ in range(windows)), key=STEP_TIME)


def window(batches: Iterator, step: Callable, steps: int) -> Timed:
    """Makes some steps; measures their time on the clock and on the CPU."""
    waited, began, began_cpu = 0.0, time.perf_counter(), time.process_time()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        step(*batch)
    seconds = time.perf_counter() - began
    cores = (time.process_time() - began_cpu) / seconds
    return Timed(1000 * waited / steps, 1000 * seconds / steps, cores)


def stand_in(seconds: float, images, labels) -> None:
    """A step of a device that takes time but no core."""
    time.sleep(seconds)


def of_device(timed: Timed, device_rate: float) -> tuple[Step, float]:
    """The parts of the stand-in's step, and the cores of its input."""
    compute = 1000 * DEVICE_BATCH / device_rate
    rest = timed.step - timed.waited - compute
    return Step(input=timed.waited, compute=compute, rest=rest), timed.cores


def on_towers(setup: findings.Setup, turns: int, times: int, processes: bool) -> tuple[dict, dict]:
    """Steps by (towers, input), and profiles by number of towers."""
    with contextlib.ExitStack() as stack:
        place = {k: stack.enter_context(place_of(k, processes)) for k in (1, 2)}

        def at(num_towers, function, *arguments):
            return place[num_towers].submit(function, num_towers, setup, *arguments).result()

        building = [place[k].submit(turn, k, setup, FIXED) for k in place]
        concurrent.futures.wait(building)  # both at once; after this they take turns
        profiles = {k: at(k, profiled, times) for k in place}
        sides = {(k, name): functools.partial(at, k, turn, name) for k, name in TRAINED}
        return by_turns(sides, turns), profiles


def place_of(num_towers: int, is_process: bool) -> concurrent.futures.Executor:
    """A process whose towers have a core each; or a thread of this process."""
    if not is_process:
        return concurrent.futures.ThreadPoolExecutor(1)
    return concurrent.futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=start, initargs=(num_towers,)
    )


def start(num_towers: int) -> None:
    """As many threads for operations as towers, and one for each operation."""
    devices.use_intra_op_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_towers)
    devices.choose(num_towers)


@functools.cache
def workplace(num_towers: int, setup: findings.Setup) -> tuple[Callable, dict[str, Iterable]]:
    """A step of `train.py`'s default recipe, with one microbatch for each tower, and its inputs."""
    network = networks.NETWORKS["cifarnet"]
    model = networks.build("cifarnet", SHAPE, CLASSES)
    decayed = network.decayed(model)
    weight_decay.regularize(decayed, network.weight_decay)
    weights = [weight.value for weight in model.trainable_variables]
    averages = [tf.Variable(weight) for weight in weights]
    optimizer, size = keras.optimizers.SGD(0.01), BATCH // num_towers

    def average(examples: int):
        with tf.name_scope("moving_averages"):
            moving_averages.update(averages, weights, 0.9999, optimizer.iterations.value)

    program = data.program(model, optimizer, num_towers, after_update=[average])

    def train_step(*batch):
        _, shown = program(tuple(map(tf.convert_to_tensor, batch)), size)
        shown.losses.numpy()  # waits for its end
        return shown

    return train_step, pipelines(data.load(setup), BATCH)


def turn(num_towers: int, setup: findings.Setup, name: str) -> Timed:
    """Times some steps with this input."""
    train_step, inputs = workplace(num_towers, setup)
    return quickest(inputs[name], train_step, windows=4, steps=2)


def profiled(num_towers: int, setup: findings.Setup, times: int) -> dict[str, float]:
    """The milliseconds of the parts of the fastest of some steps, each profiled by itself."""
    train_step, inputs = workplace(num_towers, setup)
    batch = next(inputs[FIXED])
    for _ in range(LEAD_IN):
        train_step(*batch)

    def timed_step() -> float:
        began = time.perf_counter()
        train_step(*batch)
        return 1000 * (time.perf_counter() - began)

    calls = []
    for _ in range(times):
        milliseconds, operations = profiles.recorded(timed_step)
        calls.append((milliseconds, by_part(operations, num_towers)))
    whole, parts = min(calls, key=lambda pair: pair[0])
    return parts | {"rest": max(0.0, whole - sum(parts.values()))}


PART_OF_SCOPE = {  # the scopes of towers/step.py
    "cut_batch": "copy",
    "weights": "copy",
    "tower": "compute",
    "average_gradients": "reduce",
    "watched": "reduce",
    "apply": "update",
    "moving_averages": "update",
    "state": "update",
    "metrics": "update",
}


def part_of(name: str, kind: str) -> str | None:
    """The part of a step that an operation belongs to; None if its scope is unknown."""
    if kind in ("Identity", "_Send", "_Recv"):  # how a tensor gets from one device to another
        return "copy"
    scope = name.partition("/")[0]
    return PART_OF_SCOPE.get("tower" if scope.startswith("tower_") else scope)


def by_part(operations: Iterable[profiles.Operation], num_towers: int) -> dict[str, float]:
    """The milliseconds of each part, with towers side by side."""
    sums = Counter(dict.fromkeys(PART_OF_SCOPE.values(), 0.0))
    for operation in operations:
        part = part_of(operation.name, operation.kind)
        if part is not None:
            sums[part] += operation.milliseconds / (num_towers if part == "compute" else 1)
    return dict(sums)


class Launches(NamedTuple):
    """A forward and a backward pass of a small network.

    operations: that ran, one after the other or side by side.
    typical: microseconds of the median operation.
    milliseconds: of the whole.
    """

    operations: int
    typical: float
    milliseconds: float


STEP_BY_STEP, AT_ONCE = "one time step after the other", "all time steps at once"


def of_launches(times: int) -> dict[str, Launches]:
    """A recurrent network, and the multiplications of all its time steps at once."""
    return {name: launched(make(), times) for name, make in SMALL_NETWORKS.items()}


def recurrent() -> Callable[[], object]:
    """Forward and backward pass of a GRU that runs its time steps in a loop, as most cells do."""
    with tf.device(devices.HOST):
        layer = keras.layers.GRU(UNITS, use_cudnn=False)
        layer.build([SEQUENCES, TIME_STEPS, FEATURES])
    sequences = tf.ones([SEQUENCES, TIME_STEPS, FEATURES])
    weights = [variable.value for variable in layer.trainable_variables]
    return differentiated(weights, lambda: layer(sequences))


def multiplications() -> Callable[[], object]:
    """The GRU's matrix products, of its inputs and of its states, for all time steps together."""
    rows = SEQUENCES * TIME_STEPS
    inputs, states = tf.ones([rows, FEATURES]), tf.ones([rows, UNITS])
    kernels = [tf.Variable(tf.ones([n, 3 * UNITS])) for n in (FEATURES, UNITS)]
    return differentiated(kernels, lambda: inputs @ kernels[0] + states @ kernels[1])


def differentiated(variables, forward: Callable[[], tf.Tensor]) -> Callable[[], object]:
    """The gradient of the outputs' sum, as a graph."""

    @tf.function(autograph=False)
    def one_pass():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(forward())
        return tape.gradient(total, variables)

    return one_pass


SMALL_NETWORKS = {STEP_BY_STEP: recurrent, AT_ONCE: multiplications}


def launched(one_pass: Callable[[], object], times: int) -> Launches:
    """The fastest of some profiled passes."""
    one_pass()  # builds

    def timed() -> float:
        began = time.perf_counter()
        tf.nest.map_structure(lambda gradient: gradient.numpy(), one_pass())
        return 1000 * (time.perf_counter() - began)

    milliseconds, events = min((profiles.recorded(timed) for _ in range(times)), key=lambda p: p[0])
    typical = 1000 * statistics.median(operation.milliseconds for operation in events)
    return Launches(len(events), typical, milliseconds)


def launch_table(launches: Mapping[str, Launches]):
    """The small networks beside each other."""
    head = ("the same multiplications", "operations", "the median takes, µs", "ms in all")
    return head, [
        [name, f"{of.operations:,}", f"{of.typical:.0f}", f"{of.milliseconds:.1f}"]
        for name, of in launches.items()
    ]


def answer(behind: Mapping, launches: Mapping[str, Launches]) -> str:
    """In one sentence."""
    device_rate = list(behind[SINGLE])[1]
    slow = behind[SINGLE][device_rate][0].busy < 0.8 * behind[AHEAD][device_rate][0].busy
    small = launches[STEP_BY_STEP].milliseconds > 3 * launches[AT_ONCE].milliseconds
    reasons = [
        "for its input if the step is faster on one fixed batch" if slow else "",
        "otherwise, most likely, for many small operations that are started one after the other, "
        "as in a recurrent network"
        if small
        else "",
    ]
    reason = "; ".join(part for part in reasons if part)
    return f"The device waits {reason or 'for something that was not found here'}."


def taken_apart(timed: Timed, profile: Mapping[str, float]) -> Step:
    """The parts of a step: the time without waiting is divided as in the profile."""
    scale = (timed.step - timed.waited) / sum(profile.values())
    shares = {part: scale * milliseconds for part, milliseconds in profile.items()}
    return Step(input=timed.waited, **shares)


def predicted(one: Step, num_towers: int, cores: int, of_batch: float) -> Step:
    """The step on several towers, from the parts of a step on one tower with a ready batch.

    Args:
      one: the step on one tower.
      num_towers: of the step that is predicted.
      cores: of the machine; a tower takes one.
      of_batch: milliseconds that making a batch takes on a core; no step waits for this while a
        core is free.
    """
    return one._replace(
        input=of_batch / cores if num_towers >= cores else 0.0,
        compute=one.compute / min(num_towers, cores),
    )


def rows(trained: Mapping, steps: Mapping, expected: Step, behind: Mapping) -> Iterator[tuple]:
    """(name, step, cores or None) of the table's rows."""
    for k, name in TRAINED:
        if k > 1:
            yield f"{k} towers, {name}: predicted", expected, None
        yield f"{k} tower{'s' * (k > 1)}, {name}", steps[k, name], trained[k, name].cores
    for name, of_rate in behind.items():
        rate = list(of_rate)[1]
        yield f"device of {rate:,.0f} images/s, {name}", *of_rate[rate]


def as_row(name: str, step: Step, cores: float | None) -> list[str]:
    """A row of the table; the CPU as `top` shows it, where a core is 100 %."""
    whole = sum(step)
    parts = (step.input, step.compute, whole - step.input - step.compute, whole)
    shown = [f"{milliseconds:.1f}" for milliseconds in parts]
    return [name, *shown, f"{step.busy:.0%}", "" if cores is None else f"{cores:.0%}"]


def expected_busy(device_rate: float, input_rate: float, ahead: bool) -> float:
    """The share of the time in which a device is busy, from the speeds of input and device."""
    if ahead:  # the slower of the two decides
        return min(1.0, input_rate / device_rate)
    return input_rate / (input_rate + device_rate)  # one after the other


SMALL = "copy, reduce, update"
COLOURS = {"compute": "#0072b2", "input": "#d55e00", SMALL: "#009e73", "rest": "#c4c4c4"}


def draw(figure, rates: Mapping, behind: Mapping, steps: Mapping, expected: Step) -> None:
    """How busy devices are behind each input; and the parts of the towers' steps."""
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1))
    draw_busy(left, rates, behind, 1000 * BATCH / sum(steps[1, FIXED]))
    draw_parts(right, steps, expected)


def draw_busy(axes, rates: Mapping, behind: Mapping, tower_rate: float) -> None:
    """Lines are computed, dots were measured with the stand-in."""
    measured = list(behind[SINGLE])
    shown = np.geomspace(tower_rate / 2, 2 * measured[-1], 200)
    colours = {AHEAD: COLOURS["compute"], SINGLE: COLOURS["input"], NONE_AHEAD: "#cc79a7"}
    for name, colour in colours.items():
        line = [100 * expected_busy(rate, rates[name], name != NONE_AHEAD) for rate in shown]
        axes.semilogx(shown / 1000, line, color=colour, label=name)
        dots = [100 * step.busy for step, _ in behind[name].values()]
        axes.plot(np.array(measured) / 1000, dots, "o", color=colour, markersize=5)
    axes.set(
        xlabel="thousand images/s that the device could do",
        title="Busy, % of the time",
        ylim=(0, 119),
    )
    axes.axvline(tower_rate / 1000, ymax=105 / 119, color="#9a9a9a", linewidth=1)
    axes.text(tower_rate / 1000, 108, "the tower here", color="#6a6a6a", fontsize=9)
    axes.set_yticks(range(0, 101, 20))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(loc="lower left", fontsize=9)


def draw_parts(axes, steps: Mapping, expected: Step) -> None:
    """Steps on towers as bars of their parts; the small ones together."""
    bars = {f"1 tower,\n{name}": steps[k, name] for k, name in TRAINED if k == 1}
    bars |= {"2 towers,\npredicted": expected, "2 towers,\nmeasured": steps[2, AHEAD]}
    left = np.zeros(len(bars))
    for label, colour in COLOURS.items():
        parts = label.split(", ")
        widths = np.array([sum(getattr(step, part) for part in parts) for step in bars.values()])
        axes.barh(list(bars), widths, left=left, label=label, color=colour)
        left += widths
    axes.invert_yaxis()
    axes.set(title="Milliseconds of a step")
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, loc="outside lower right", ncols=4, fontsize=9)


LESSON = lesson.Lesson("where_time_goes", QUESTION, run)
