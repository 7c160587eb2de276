"""Evaluates a run's checkpoints: each example of a split exactly once.

    python eval.py --train_dir=runs/first
    python eval.py --train_dir=runs/first --run_once=false    (follows a run)

Any number of towers will do. Each evaluation adds a line to eval.jsonl in the
run's folder, and to TensorBoard. Once the package is installed, the command is
towers-eval.
"""

from towers_cli import command_line, settings


def command() -> int:
    """Runs the command; returns the exit code."""
    return command_line.run(settings.EvalSettings, __doc__, main)


def main(chosen: settings.EvalSettings) -> int:
    """Evaluates one checkpoint, or each that a running training saves; returns the exit code."""
    from towers_cli import checkpoint_evaluator

    evaluator = checkpoint_evaluator.CheckpointEvaluator(chosen)
    if chosen.run_once:
        evaluator.evaluate_once()
    else:
        evaluator.follow()
    return 0
