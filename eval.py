"""Evaluates checkpoints of a run; see towers_cli/evaluate.py.

python eval.py --train_dir=runs/first
"""

import sys

from towers_cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate.command())
