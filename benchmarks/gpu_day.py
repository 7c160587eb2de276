"""What a GPU must tell, in two calls of nine minutes: bits, rates beside peers, where time goes.

    python -m benchmarks.gpu_day --part=1 --output=gpu_day.jsonl --pytorch_python=other/bin/python
    python -m benchmarks.gpu_day --part=2 --output=gpu_day.jsonl --pytorch_python=other/bin/python
    python -m benchmarks.gpu_day --rehearse --output=rehearsal.jsonl

Part 1: bits, `cifarnet`, `resnet`, the transformer. Part 2: `resnet50`, `fastnet`, microbatches,
why bits differ, a profile. The limits of the sections are for 16 cores and an H200; compiling is
what takes their time, so at most a third as many processes as cores compile at once. Each result is
a JSON line, printed and added to the file at once. If a process is lost, a line says which results
went with it. `--rehearse` does most of it with tiny batches on the CPU, in some minutes.

The sides of a network take turns, all warmed up before. `distribute` is `fit` on a tower, and
`keras-xla` without; with `-16` they make 16 steps a call, with `-ahead` tf.data copies batches
to the GPU. `m4` has four microbatches, on towers; `s3` is one XLA program for a whole step, `s3x16`
has 16 steps a call, in one program or `-graph`; `-resident`: without copies of the batch. `/s0`
keeps the choices of XLA's autotuner; `/deterministic` has TensorFlow's determinism (with TF32).
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from towers import machine

PYTORCH = """
import functools, types, torch
from benchmarks.peers import pytorch_tasks
fused = functools.partial(torch.optim.SGD, fused=torch.cuda.is_available())
compile = functools.partial(torch.compile, mode="reduce-overhead")  # CUDA graphs
best = {"compile": compile, "optim": types.SimpleNamespace(SGD=fused)}
pytorch_tasks.torch = types.SimpleNamespace(**(vars(torch) | best))
pytorch_tasks.main()
"""
PYTORCH_VERSIONS = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "used": cuda,
                  "cudnn": torch.backends.cudnn.version()}))
"""
FLAGS = {  # name to an XLA flag, with the folder that keeps choices
    "autotuner": "--xla_gpu_experimental_autotuner_cache_dir={folder}/autotuner",
    "fusions": "--xla_gpu_per_fusion_autotune_cache_dir={folder}/fusions",
}
NO_FUSION_TUNING = "--xla_gpu_experimental_enable_fusion_autotuner=false"
MEGABYTES = 3072  # of a logical GPU: the same for any number of them, as it limits the autotuner
KINDS = {  # of hashes
    "cifarnet float32": {"task": "cifarnet", "dtype": "float32"},
    "resnet bfloat16": {"task": "resnet", "dtype": "bfloat16"},
}
OF_S3 = {
    "usual": ["s3", "s3x16", "s3x16-resident", "s3x16-graph"],
    "rehearsed": ["s3", "s3x16-graph"],  # on CPUs a loop in a program is slow
    "few": ["s3", "s3-resident"],
}
OF_FIT = {
    "keras-xla": {}, "keras-xla-16": {"steps": 16}, "distribute": {"distribute": True},
    "distribute-16": {"distribute": True, "steps": 16},
}  # fmt: skip
OF_LARGE_BATCHES = {
    "keras-xla": {}, "keras-xla-ahead": {"ahead": True},
    "distribute": {"distribute": True}, "distribute-ahead": {"distribute": True, "ahead": True},
}  # fmt: skip
NOISE = re.compile(r"WARNING: All log messages|[IWEF]\d{4} ")  # of TensorFlow, on stderr


class Lost(Exception):
    """A process that ended, or was ended because it took too long."""


class Process:
    """A process that prints JSON lines; a thread reads them, so that waiting for one can end."""

    running: set["Process"] = set()

    def __init__(self, command: Sequence[str], env: Mapping[str, str]):
        self._lines = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=env, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self.running.add(self)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def answer(self, deadline: float) -> dict | None:
        """The next line; None at the end of a process that did its work.

        Raises:
          Lost: it ended with an error, or there was no line before the deadline.
        """
        try:
            line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            self.end()
            raise Lost("no answer in time") from None
        if line is None:
            self.running.discard(self)
            if status := self._process.wait():
                self._errors.seek(0)
                said = [text for text in self._errors if text.strip() and not NOISE.match(text)]
                last = re.sub(r"[^\s(]*/", "", "".join(said[-1:]))  # no paths of a machine
                raise Lost(f"exit status {status}; {last.strip()[:300]}")
        return line

    def ask(self, turn: dict, deadline: float) -> dict:
        """The answer to a turn.

        Raises:
          Lost: as `answer`, or the process has ended.
        """
        with contextlib.suppress(OSError):  # it has ended, as the answer will show
            print(json.dumps(turn), file=self._process.stdin, flush=True)
        if (line := self.answer(deadline)) is None:
            raise Lost("it ended")
        return line

    def end(self) -> None:
        """Ends it, and all that it started."""
        self.running.discard(self)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclasses.dataclass
class Day:
    """What all sections need.

    Attributes:
      options: of the command line.
      folder: for caches; thrown away at the end.
      begun: by `time.monotonic`.
      at_once: most processes that compile at a time.
      flags: those of FLAGS that TensorFlow knows.
    """

    options: argparse.Namespace
    folder: Path
    begun: float
    at_once: int
    flags: tuple[str, ...] = tuple(FLAGS)

    def tell(self, section: str, **line) -> None:
        """Prints a result and adds it to the file."""
        line = {"section": section, "at": round(time.monotonic() - self.begun, 1)} | line
        text = json.dumps(line)
        print(text, flush=True)
        with open(self.options.output, "a", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())

    def start(self, what: dict, env: Mapping[str, str] | None = None) -> Process:
        """A process of `gpu_sides`."""
        what = json.dumps(what | {"begun": time.time()})
        rehearsed = {"CUDA_VISIBLE_DEVICES": "-1"} if self.options.rehearse else {}
        command = [sys.executable, "-m", "benchmarks.peers.gpu_sides", what]
        return Process(command, os.environ | rehearsed | dict(env or {}))

    def start_pytorch(self, program: str, *arguments: str) -> Process:
        """A process of the other interpreter, without the libraries beside TensorFlow's path."""
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        own = tuple(filter(None, os.environ.get("PYTHONPATH", "").split(":"))) or ("\0",)
        paths = env.get("LD_LIBRARY_PATH", "").split(":")
        env["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p and not p.startswith(own))
        env |= {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
        return Process([self.options.pytorch_python, "-c", program, *arguments], env)

    def kept_choices(self, name: str, programs: bool = True, more: str = "") -> dict[str, str]:
        """S0: the environment of a process that keeps XLA's choices in a folder of that name."""
        folder = self.folder / re.sub(r"\W+", "-", name)
        for part in ("autotuner", "fusions", "programs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        own = [FLAGS[flag].format(folder=folder) for flag in self.flags]
        given = " ".join([os.environ.get("XLA_FLAGS", ""), *own, more]).split()
        env = {"XLA_FLAGS": " ".join(given), "TF_CUDNN_DETERMINISTIC": "1"}
        if programs:
            kind = "CPU" if self.options.rehearse else "GPU"
            env["TF_XLA_FLAGS"] = (
                f"--tf_xla_persistent_cache_directory={folder}/programs "
                f"--tf_xla_persistent_cache_device_types={kind}"
            )
        return env

    def each(self, do: Callable, jobs: Sequence[tuple]) -> list:
        """What it returns for each job, of which only some are done at a time."""
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(lambda job: do(*job), jobs))


def one_answer(process: Process, deadline: float) -> dict:
    """All lines of a process as one; what failed is in it as `error`."""
    found = {}
    try:
        while line := process.answer(deadline):
            found |= line
    except Lost as error:
        found["error"] = str(error)
    return found


def names(day: Day, deadline: float) -> None:
    """The first line: the machine and its libraries. Then which flags may be used."""
    tried = {"all": day.kept_choices("tried")}
    if not day.options.rehearse:  # two cores have enough to do
        alone = FLAGS | {"no fusion tuning": NO_FUSION_TUNING}
        for name, flag in alone.items():
            tried[name] = {"XLA_FLAGS": flag.format(folder=day.folder / "tried")}
    first = day.start({"do": "names"})
    started = {name: day.start({"do": "flags"}, env) for name, env in tried.items()}
    pytorch = day.options.pytorch_python and day.start_pytorch(PYTORCH_VERSIONS)
    found = one_answer(first, deadline)
    found["pytorch"] = one_answer(pytorch, deadline) if pytorch else None
    query = "name,driver_version,vbios_version,clocks.max.sm,power.limit,memory.total"
    smi = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(smi, capture_output=True, text=True, timeout=20)
        found["nvidia_smi"] = done.stdout.strip()
    day.tell("names", **found)
    answers = {name: one_answer(process, deadline) for name, process in started.items()}
    if "exit status" in answers["all"].get("error", ""):
        fine = [name for name in FLAGS if "error" not in answers.get(name, {"error": ""})]
        day.flags = tuple(fine[:1])  # together they may be what failed
    day.tell("flags", used=day.flags, answers=answers)


def hashes_of(day: Day, deadline: float, jobs: Sequence[tuple]) -> dict[str, dict[str, str]]:
    """State hashes after 30 steps in a process for each (kind, name, GPUs, environment, more)."""
    rehearse, found = day.options.rehearse, {}
    common = {"do": "states", "batch": 16 if rehearse else 256, "microbatches": 4}
    common |= {"steps": 3 if rehearse else 30, "megabytes": MEGABYTES}

    def run(kind: str, name: str, gpus: int, env: Mapping[str, str], more: dict) -> None:
        if deadline - time.monotonic() < 10:
            return day.tell("hashes", kind=kind, run=name, skipped="no time")
        process = day.start(KINDS[kind] | common | more | {"gpus": gpus}, env)
        line = one_answer(process, deadline)
        found.setdefault(kind, {})[name] = line.get("sha256", "lost")
        folder = env["XLA_FLAGS"].partition("cache_dir=")[2].partition("/autotuner")[0]
        day.tell("hashes", kind=kind, run=name, gpus=gpus, **line, kept=contents(Path(folder)))

    day.each(run, jobs)
    return found


def hashes(day: Day, deadline: float) -> None:
    """The promise: fresh processes on 1, 2, 4 logical GPUs, with choices that one of them made."""
    cold, warm = [], []
    for kind in list(KINDS)[: 1 if day.options.rehearse else None]:
        few = day.options.rehearse or kind == "cifarnet float32"
        cold.append((kind, "cold 1 first", 1, day.kept_choices(kind), {}))
        if not few:
            cold.append((kind, "cold 1", 1, day.kept_choices(f"{kind} again"), {}))
        for n in (1, 2) if few else (1, 2, 4):
            warm.append((kind, f"warm {n}", n, day.kept_choices(kind), {}))
            if not few and n < 4:
                choices = day.kept_choices(kind, programs=False)
                warm.append((kind, f"warm {n}, no programs kept", n, choices, {}))
    found = [hashes_of(day, deadline, jobs) for jobs in (cold, warm)]
    day.tell("hashes", cold=found[0], warm=found[1])


def variants(day: Day, deadline: float) -> None:
    """Runs that tell why hashes differ, each with cold choices: twice 1 GPU, and 2."""
    jobs, few = [], day.options.rehearse
    for name in ("TensorFlow's determinism", "no fusion tuning", "cuDNN as it is"):
        for index, gpus in enumerate((1,) if few else (1, 1, 2)):
            more = NO_FUSION_TUNING if name == "no fusion tuning" else ""
            env = day.kept_choices(f"{name} {index}", more=more)
            if name == "cuDNN as it is":
                del env["TF_CUDNN_DETERMINISTIC"]
            control = {"deterministic": True} if name == "TensorFlow's determinism" else {}
            jobs.append(("cifarnet float32", f"{name}, cold {gpus} ({index})", gpus, env, control))
    day.tell("variants", hashes=hashes_of(day, deadline, jobs[: 1 if few else None]))


def contents(folder: Path) -> dict:
    """What was kept in a folder: files, bytes, and a hash of them all, of each folder within."""
    found = {}
    with contextlib.suppress(OSError):  # another process may be at work
        for part in sorted(folder.iterdir()):
            files = sorted(path for path in part.rglob("*") if path.is_file())
            read = [path.name.encode() + path.read_bytes() for path in files]
            digest = hashlib.sha256(b"".join(read)).hexdigest()[:16]
            found[part.name] = [len(files), sum(path.stat().st_size for path in files), digest]
    return found


def by_turns(
    day: Day,
    section: str,
    plans: Mapping[str, tuple[Callable[[float], Process], Sequence[str]]],
    deadline: float,
    **about,
) -> None:
    """Images per second of all sides: 3 rounds, in which each has its turn; the medians.

    `plans` has for each process how it starts, given the time (of `time.time`) until which it may
    prepare, and its sides. Its lines before its first turn say what it prepared; the last of them
    has `ready`, the sides that are, or is that of `counter.Counter`.
    """
    rates, processes, ready = {}, {}, {}
    rounds = 1 if day.options.rehearse else 3
    of_turns = rounds * sum(len(sides) for _, sides in plans.values())
    warm = deadline - of_turns * (day.options.turn_seconds + 0.3) - 3

    def prepare(name: str, start: Callable, sides: Sequence[str]) -> None:
        if warm - time.monotonic() < 5:
            return day.tell(section, **about, process=name, lost=sides, error="not started in time")
        processes[name] = start(time.time() + warm - time.monotonic())
        try:
            while line := processes[name].answer(warm):
                if "ready" in line or "images" in line:
                    ready[name] = line.get("ready", sides)
                    break
                day.tell(section, **about, process=name, **line)
        except Lost as error:
            day.tell(section, **about, process=name, lost=sides, error=str(error))

    def turn(name: str, side: str) -> float | None:
        asked = {"side": side, "seconds": day.options.turn_seconds}
        try:
            answer = processes[name].ask(asked, min(time.monotonic() + 20, deadline))
        except Lost as error:
            lost = ready.pop(name)
            return day.tell(
                section, **about, process=name, lost=lost, at_side=side, error=str(error)
            )
        if not answer.get("fine", True):
            day.tell(section, **about, process=name, side=side, error="not finite")
        return round(answer["images"] / answer["seconds"], 1)

    try:
        day.each(prepare, [(name, *plan) for name, plan in plans.items()])
        for number in range(rounds):
            of_round = {}
            for name, side in [(key, side) for key in plans for side in ready.get(key, ())]:
                if name in ready and (rate := turn(name, side)):
                    shown = "/".join([side, *name.split("/")[1:]])
                    of_round[shown] = rate
                    rates.setdefault(shown, []).append(rate)
            day.tell(section, **about, round=number + 1, images_per_second=of_round)
    finally:
        for process in processes.values():
            process.end()
    medians = {name: round(statistics.median(found), 1) for name, found in rates.items()}
    day.tell(section, **about, medians=dict(sorted(medians.items(), key=lambda m: -m[1])))


def plan(day: Day, env: Mapping[str, str] | None = None, **what) -> tuple[Callable, Sequence[str]]:
    """How a process of `gpu_sides` starts, and its sides."""
    return lambda until: day.start({"do": "sides"} | what | {"until": until}, env), what["sides"]


def rates(task: str, dtype: str, batch: int, prices=(), s3="usual", fits=OF_FIT) -> Callable:
    """A section: ways to train a network, longest to compile first; `prices` of determinism."""

    def section(day: Day, deadline: float) -> None:
        about, of_s3 = {"task": task, "dtype": dtype, "batch": batch}, OF_S3[s3]
        if day.options.rehearse:
            about = {"task": "cifarnet", "dtype": "float32", "batch": 16}
            of_s3 = OF_S3["rehearsed"] if s3 == "usual" else of_s3
        what, own, plans = about | {"steps": 16}, about | {"sides": ["s3"]}, {}
        if day.options.pytorch_python:
            given = (about["task"], about["dtype"], "--compile", f"--batch={about['batch']}")
            name = "pytorch-compiled"
            plans[name] = (lambda until: day.start_pytorch(PYTORCH, *given), [name])
        plans["s3"] = plan(day, sides=of_s3, **what)
        for name, options in fits.items():
            plans[name] = plan(day, **about, do="in_fit", sides=[name], **options)
        if "s0" in prices:
            plans["s3/s0"] = plan(day, day.kept_choices(f"rates {task}"), **own)
        if "deterministic" in prices:
            plans["s3/deterministic"] = plan(day, **own, deterministic=True)
        by_turns(day, "rates", plans, deadline, **about)

    return section


def microbatches(day: Day, deadline: float) -> None:
    """Towers with 1 to 8 microbatches, on 1, 2 and 4 logical GPUs."""
    sizes, numbers = ((128, 1024), (1, 2, 4)) if not day.options.rehearse else ((16,), (1, 2))
    about = {"task": "cifarnet", "dtype": "float32"}
    plans = {}
    for gpus in numbers:
        more = about | {"gpus": gpus, "megabytes": MEGABYTES}
        more["sides"] = ["m1", "m4", "m2", "m8"] if gpus == 1 else ["m4"]
        for batch in sizes:
            plans[f"{gpus} GPUs/batch {batch}, {gpus} GPUs"] = plan(day, batch=batch, **more)
    by_turns(day, "microbatches", plans, deadline, **about)


def profile(day: Day, deadline: float) -> None:
    """A profile, what XLA made, and errors of gradients of biases."""
    parts = ["profiled", "compiled_operations", "bias_errors"]
    what = {"do": "facts", "parts": parts, "task": "cifarnet", "dtype": "float32"}
    process = day.start(what | {"batch": 16 if day.options.rehearse else 128})
    try:
        while line := process.answer(deadline):
            day.tell("profile", **line)
            parts = parts[parts.index(line["what"]) :]
    except Lost as error:
        day.tell("profile", lost=parts, error=str(error))


SECTIONS: dict[str, tuple[int, int, Callable[[Day, float], None]]] = {  # to part, seconds at most
    "names": (0, 20, names),
    "hashes": (1, 120, hashes),
    "cifarnet": (1, 105, rates("cifarnet", "float32", 128, prices=("s0", "deterministic"))),
    "resnet": (1, 145, rates("resnet", "bfloat16", 512, prices=("s0", "deterministic"))),
    "transformer": (1, 135, rates("transformer", "float32", 64)),
    "resnet50": (2, 150, rates("resnet50", "bfloat16", 128, s3="few", fits=OF_LARGE_BATCHES)),
    "fastnet": (2, 105, rates("fastnet", "float32", 128)),
    "microbatches": (2, 110, microbatches),
    "variants": (2, 80, variants),
    "profile": (2, 60, profile),
}  # fmt: skip
REHEARSED = tuple(name for name in SECTIONS if name not in ("resnet", "transformer", "fastnet"))


def main():
    """Runs the sections in the order of their importance, while there is time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", required=True, help="file of JSON lines to add to")
    parser.add_argument("--part", type=int, choices=(1, 2), help="of the two calls")
    parser.add_argument("--section", action="append", choices=list(SECTIONS), help="these alone")
    parser.add_argument("--budget_seconds", type=float, default=525.0, help="of all sections")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny batches")
    parser.add_argument("--turn_seconds", type=float, help="of each side in each round")
    parser.add_argument("--pytorch_python", help="the interpreter that has PyTorch, if any")
    options = parser.parse_args()
    options.turn_seconds = options.turn_seconds or (0.1 if options.rehearse else 0.5)
    chosen = options.section or (REHEARSED if options.rehearse else SECTIONS)
    if options.part:
        chosen = [name for name in chosen if SECTIONS[name][0] in (0, options.part)]
    at_once = 1 if options.rehearse else max(2, machine.available_cores() // 3)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        day = Day(options, Path(folder), time.monotonic(), at_once)
        end = day.begun + options.budget_seconds
        try:
            for name in chosen:
                _, limit, section = SECTIONS[name]
                limit *= 3 if options.rehearse else 1  # on two cores of a shared machine
                begun = time.monotonic()
                if end - begun < 20:
                    day.tell(name, skipped="no time is left")
                    continue
                try:
                    section(day, min(begun + limit, end))
                except Exception as error:
                    day.tell(name, error=f"{type(error).__name__}: {error}")
                day.tell(name, seconds=round(time.monotonic() - begun, 1))
        finally:
            for process in list(Process.running):
                process.end()


if __name__ == "__main__":
    main()
