"""How a command ends: an error of the user's or the system's, or a signal, becomes one line."""

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from towers_cli import settings, system

_SPLITS = "Training needs train; --eval_split (of eval.py, --split) names the one to evaluate."


def explained(
    program: str,
    settings_of: Callable[[], settings.Settings],
    run: Callable[[settings.Settings], int],
    stopped: Callable[[int], int],
) -> int:
    """What `run` returns, or the exit code of what went wrong, which is printed in one line.

    Args:
      program: the command, as it was called.
      settings_of: makes the checked record of its settings, before TensorFlow is imported.
      run: the command itself, with that record.
      stopped: (signal) says what Ctrl-C has left; returns the exit code.
    """
    program = os.path.basename(program)
    try:
        chosen = settings_of()
        return _user_errors_said(program, lambda: run(chosen))
    except settings.SettingsError as error:
        print(f"{program}: error: {system.printable(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return stopped(signal.SIGINT)
    except BrokenPipeError:
        return system.output_is_gone()
    except ImportError as error:
        if error.name != "towers":  # which says that Keras is not on TensorFlow
            raise
        print(f"{program}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # such as a full disk
        return system.ended_by_system(program, error)


def _user_errors_said(program: str, run: Callable[[], int]) -> int:
    # Imported here, so that a wrong flag is answered without waiting for TensorFlow.
    with system.without_notices():
        from input_pipeline import decoded
        from towers import errors, noise
        from towers.runs import console
        from towers.runs.warm_start import WarmStartError

    noise.quiet_loggers()
    try:
        return run()
    except (settings.SettingsError, errors.UserError) as error:
        message = f"--{error}" if isinstance(error, WarmStartError) else str(error)
        if isinstance(error, decoded.NoSuchSplitError):
            message += f". {_SPLITS}"
        console.say_error(program, message)
        return error.exit_code


def end_at_once_on_signals() -> None:
    """Lets SIGTERM and a closed terminal end the process, before there is anything to save."""
    signal.signal(signal.SIGTERM, _end_at_once)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
        signal.signal(signal.SIGHUP, _end_at_once)


def _end_at_once(number: int, _frame) -> None:
    sys.exit(stopped_at_once(number))


def stopped_at_once(number: int) -> int:
    """Says so, if anyone reads it; returns the shell's exit code for a signal."""
    try:
        print("stopped at once; the newest checkpoint, if there is one, is unchanged", flush=True)
    except OSError:  # the terminal or the pipe is gone
        system.output_is_gone()
    return 128 + number


def finished(folder, split: str, workers) -> int:
    """Says what a run has come to; returns the exit code.

    Args:
      folder: the `run_folder.RunFolder`.
      split: that was evaluated.
      workers: of the run; the chief has its folder.
    """
    if not workers.is_chief:
        print(f"finished; {workers.name(0)} has the run")
        return 0
    summary = folder.read_final_summary()
    print(
        f"finished: {split} accuracy {summary['val_accuracy']:.2%}, {folder.final_model}, "
        f"weights sha256 {summary['weights_sha256'][:16]}\n"
        f"watch it: {_tensorboard()} --logdir {folder.path}"
    )
    return 0


def _tensorboard() -> str:
    """The command that opens TensorBoard, from wherever this Python has it."""
    beside_python = Path(sys.executable).with_name("tensorboard")
    if shutil.which("tensorboard") or not beside_python.exists():
        return "tensorboard"
    with contextlib.suppress(ValueError):  # not below the current folder
        return str(beside_python.relative_to(Path.cwd()))
    return str(beside_python)


def keep_libraries_from_writing() -> None:
    """For a dry run: some libraries write into the home folder when they are first imported."""
    sys.dont_write_bytecode = True
    if "keras" in sys.modules:
        return
    keras_home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    if not os.path.exists(os.path.join(keras_home, "keras.json")):
        os.environ["KERAS_HOME"] = os.path.join(os.devnull, "keras")  # where nothing can be written
    os.environ["MPLCONFIGDIR"] = os.path.join(os.devnull, "matplotlib")  # Keras imports Matplotlib
