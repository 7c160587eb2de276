"""Evaluates checkpoints of a run; see towers_cli/evaluate.py.

python eval.py --train_dir=runs/first
"""

import os
import sys

if sys.flags.safe_path:  # else Python has added this folder itself
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from towers_cli import evaluate

if __name__ == "__main__":
    sys.exit(evaluate.command())
