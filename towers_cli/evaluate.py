"""Evaluates a run's checkpoints: each example of a split exactly once.

    python eval.py --train_dir=runs/first
    python eval.py --train_dir=runs/first --run_once=false    (follows a run)

Any number of towers will do. Each evaluation adds a line to eval.jsonl in the
run's folder, and to TensorBoard. Once the package is installed, the command is
towers-eval.
"""

from towers_cli import command_line, settings


def command() -> None:
    """Runs the command to its end."""
    command_line.run(settings.EvalSettings, __doc__, main)


def main(chosen: settings.EvalSettings) -> int:
    """Evaluates one checkpoint, or each that a running training saves; returns the exit code."""
    from towers.runs import checkpoints
    from towers_cli import checkpoint_evaluator

    evaluator = checkpoint_evaluator.CheckpointEvaluator(chosen)
    if not chosen.run_once:
        evaluator.follow()
        return 0
    folder = evaluator.folder.checkpoints
    while path := evaluator.checkpoint or checkpoints.newest(folder):
        try:
            evaluator.evaluate(path)
            return 0
        except checkpoints.CheckpointError:
            # A training that goes on may have deleted it, and saved another.
            if evaluator.checkpoint or checkpoints.is_checkpoint(path):
                raise
    raise checkpoints.CheckpointError(f"{folder} holds no checkpoint yet")
