"""What train.py and eval.py do before TensorFlow: they parse flags and ask for file handles.

A wrong flag is one line on stderr and exit code 2; help, or the version, goes to stdout and ends
with 0.

It stands beside the scripts and imports neither package: a slip of the finger is answered without
waiting for TensorFlow.
"""

import contextlib
import difflib
import errno
import os
import re
import reprlib
import resource
import sys
from pathlib import Path

from absl import flags

OPEN_FILES = 64  # enough for all that a run opens at a time
# With less, TensorFlow ends in a crash. Measured: 2 GB of address space are too few and 2.5 are
# enough; a run on two cores has 12 threads.
ADDRESS_SPACE = 3 * 2**30  # bytes
THREADS = 16, 8  # in any case, and for each core

# A flag to its names elsewhere: in the tutorial, TensorFlow's models, Keras, PyTorch's examples,
# Lightning, Transformers.
ALSO_CALLED = {
    "checkpoint": "ckpt checkpoint_path ckpt_path weights resume restore",
    "train_dir": "logdir log_dir model_dir output_dir out_dir save_dir run_dir work_dir workdir "
    "checkpoint_dir ckpt_dir eval_dir default_root_dir checkpoint_path ckpt_path resume restore "
    "resume_from_checkpoint",
    "dataset": "dataset_name data_set data",
    "data_dir": "datadir dataset_dir data_path data_root data",
    "model": "arch architecture model_name network net backbone",
    "compute_dtype": "dtype precision mixed_precision amp fp16 use_fp16 bf16 half",
    "num_towers": "towers gpus gpu num_gpus n_gpus ngpus devices num_devices nproc_per_node "
    "num_clones num_replicas replicas",
    "workers": "num_workers num_nodes nnodes nodes hosts worker_hosts world_size",
    "worker_index": "rank node_rank task_index task_id",
    "global_batch_size": "b batch batch_size batchsize train_batch_size eval_batch_size "
    "per_device_train_batch_size per_device_eval_batch_size per_gpu_batch_size",
    "num_microbatches": "microbatches accumulate_grad_batches gradient_accumulation_steps "
    "accumulation_steps grad_accum",
    "intra_op_threads": "threads num_threads intra_op_parallelism_threads num_intra_threads",
    "deterministic": "enable_op_determinism use_deterministic_algorithms determinism",
    "jit_compile": "xla use_xla enable_xla compile jit",
    "train_epochs": "epochs epoch num_epochs n_epochs max_epochs num_train_epochs",
    "max_steps": "steps step num_steps train_steps num_train_steps total_steps iterations "
    "max_iter num_iterations",
    "learning_rate": "lr initial_learning_rate base_learning_rate base_lr",
    "learning_rate_schedule": "lr_schedule lr_scheduler lr_scheduler_type scheduler lr_policy "
    "learning_rate_decay_type",
    "epochs_per_decay": "num_epochs_per_decay decay_steps step_size lr_step_size",
    "decay_factor": "gamma lr_gamma decay_rate lr_decay learning_rate_decay_factor",
    "decay_epochs": "milestones lr_milestones lr_steps",
    "warmup_epochs": "warmup warmup_steps warmup_ratio num_warmup_steps lr_warmup_epochs",
    "optimizer": "opt optim",
    "weight_decay": "wd l2",
    "clip_norm": "clipnorm global_clipnorm max_grad_norm clip_grad_norm grad_clip gradient_clip "
    "gradient_clip_val",
    "label_smoothing": "smoothing label_smoothing_factor",
    "moving_average_decay": "ema use_ema ema_decay ema_momentum model_ema model_ema_decay",
    "seed": "random_seed rng_seed manual_seed random_state",
    "log_every_steps": "log_every log_every_n_steps log_frequency log_interval log_steps "
    "logging_steps print_freq",
    "summary_every_steps": "summary_steps save_summary_steps",
    "checkpoint_every_steps": "checkpoint_every checkpoint_steps save_steps save_every save_freq "
    "save_checkpoints_steps",
    "checkpoints_to_keep": "max_to_keep keep_checkpoint_max save_total_limit",
    "eval_split": "eval_data validation_split val_split valid_split test_split",
    "begin_from": "init_from pretrained finetune_from warm_start load_from",
    "eval_every_epochs": "eval_every eval_steps eval_freq validation_freq epochs_between_evals "
    "check_val_every_n_epoch",
    "profile_steps": "profile profiler profile_batch",
    "split": "eval_data eval_split subset",
    "eval_interval_seconds": "eval_interval_secs",
    "test_time_flip": "tta",
}
# What has no flag because there is nothing to set, and why.
NOT_NEEDED = dict.fromkeys(
    ("num_workers", "dataloader_num_workers", "num_preprocess_threads"),
    "images are prepared on all cores",
)


class _VersionFlag(flags.BooleanFlag):
    """Shows the version where it is given, as absl's --help does the flags."""

    def __init__(self):
        super().__init__("version", False, "Show the version.", allow_hide_cpp=True)

    def parse(self, argument):
        if self._parse(argument):
            print(f"towers {version()}")
            sys.exit()


flags.DEFINE_flag(_VersionFlag())


def parse(argv, values=flags.FLAGS):
    """Parses a command line, for `app.run(main, flags_parser=command_line.parse)`.

    Args:
      argv: the program's name, then its arguments.
      values: the flags.

    Returns:
      The program's name, then the arguments that are no flags.

    Raises:
      SystemExit: with 2, for a flag is unknown, or its value is not of its type; stderr says which.
        With 0, for help or the version was asked for and shown.
    """
    provide_output()
    try:
        rest = [argument for argument in values(argv, known_only=True) if argument != "--"]
        if rest[1:2] == ["-h"]:
            values([argv[0], "--help"])
        problem = _unknown(rest[1], values) if rest[1:] and rest[1].startswith("-") else None
    except flags.IllegalFlagValueError as error:
        problem = _illegal(error, values)
    except RecursionError:
        problem = "--flagfile: too many files that name the next one"
    except UnicodeDecodeError as error:
        problem = f"--flagfile: is not text: {error}"
    except (flags.Error, ValueError) as error:  # ValueError: absl's own, for --noflag=value
        problem = _one_line(error)
    except SystemExit:  # of absl's flags, with 1 after the help
        sys.exit(_shown_to_the_end())
    except BrokenPipeError:
        sys.exit(output_is_gone())
    if problem is None:
        return rest
    print(f"{os.path.basename(argv[0])}: error: {problem}", file=sys.stderr)
    sys.exit(2)


def version() -> str:
    """The package's, as its source has it: importing it would import TensorFlow."""
    source = (Path(__file__).parent / "towers" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.M)[1]


def _shown_to_the_end():
    """Writes out what was printed; returns the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return output_is_gone()
    return 0


def _unknown(argument, values):
    given = argument.partition("=")[0]
    name = given.lstrip("-").lower().replace("-", "_")
    remark = f" ({NOT_NEEDED[name]})" if name in NOT_NEEDED else ""
    meant = [f"--{flag}" for flag in _meant(name, values)]
    hint = f"did you mean {' or '.join(meant)}?" if meant else "--help lists them"
    return f"{_shown(given)}: there is no such flag{remark}; {hint}"


def _meant(name, values):
    """Flags that somebody may mean by a name that is none, at most two, the likeliest first."""
    if name in values:  # it was given with hyphens, or capitals
        return [name]
    if name.startswith("no_") and name[3:] in values and values[name[3:]].boolean:
        return [f"no{name[3:]}"]
    known = {}
    for flag, others in ALSO_CALLED.items():
        for other in others.split():
            known.setdefault(other, []).append(flag)
    if name not in known:
        for flag in values:
            known.setdefault(flag, []).append(flag)
    like = [name] if name in known else difflib.get_close_matches(name, known, n=2, cutoff=0.7)
    flags_meant = [flag for other in like for flag in known[other] if flag in values]
    return list(dict.fromkeys(flags_meant))[:2]


def _illegal(error, values):
    """Says it as a `settings.SettingsError` does: `--flag=value: must be ...`."""
    # absl has caught the parser's exception, and says "flag --name=value: that exception".
    given = str(error).removeprefix("flag --").removesuffix(f": {error.__context__}")
    name, _, value = given.partition("=")
    if name not in values:  # --flagfile without its value
        return _one_line(error)
    flag = values[name]
    allowed = "true or false" if flag.boolean else flag.parser.syntactic_help
    choices = getattr(flag.parser, "enum_values", [])
    if choices:
        near = difflib.get_close_matches(value.lower(), choices, n=1)
        allowed = f"one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
    return f"--{name}={_shown(value)}: must be {allowed}" if allowed else _one_line(error)


def _shown(text):
    return text if text.isprintable() and len(text) <= 60 else reprlib.repr(text)


def _one_line(error):
    return " ".join(str(error).removeprefix("ERROR:: ").split())[:300]


def provide_output():
    """Sees to it that what is printed cannot end the process: it is lost, or escaped.

    Where stdin, stdout or stderr is closed, the next file that is opened would take its place, and
    what TensorFlow prints would go into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  for good
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):  # an ASCII terminal, and a folder with another name
        sys.stdout.reconfigure(errors="backslashreplace")


def provide_limits():
    """Sees to it that the system lets the process have what TensorFlow would crash without.

    Raises:
      OSError: it does not; names the limit.
    """
    _provide_open_files()
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= addresses < ADDRESS_SPACE:
        raise OSError(
            errno.ENOMEM,
            f"this process may use {addresses / 2**30:.2g} GB of address space, and "
            f"{ADDRESS_SPACE / 2**30:.2g} are needed (ulimit -v)",
        )
    if os.geteuid():  # root may have any number
        _check_threads()


def _provide_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
        return
    raise OSError(
        errno.EMFILE,
        f"this process may open {soft} files at a time, and {OPEN_FILES} are needed (ulimit -n)",
    )


def _check_threads():
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if not 0 <= limit < 2**16:  # a higher one, or none, is not met
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    base, per_core = THREADS
    there, needed = _threads_of_user(), base + per_core * (cores or 1)
    if there + needed > limit:
        raise OSError(
            errno.EAGAIN,
            f"this user may have {limit:,} threads, has {there:,}, and {needed:,} more are needed "
            "(ulimit -u)",
        )


def _threads_of_user():
    """How many threads the processes of this user have."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if process.stat().st_uid == os.geteuid():
                count += len(os.listdir(process / "task"))
    return count


def said_by_system(error):
    """An OSError in words: `/a/file: No space left on device`, without Python's `[Errno 28]`."""
    text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def ended_by_system(command, error):
    """Says why a command ends, where somebody reads it; returns the exit code."""
    try:
        print(f"{command}: error: {said_by_system(error)}", file=sys.stderr, flush=True)
    except OSError:  # the terminal was closed, and what it said of that is the error
        return output_is_gone()
    return 1


def output_is_gone():
    """Ends the output where its reader has gone: that of `train.py | head`, a closed terminal.

    Returns:
      The exit code, as the shell has it for SIGPIPE.
    """
    # Else Python complains when it flushes at its end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return 141
