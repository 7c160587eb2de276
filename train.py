"""Trains an image classifier on towers; see towers_cli/train.py.

python train.py --train_dir=runs/first --num_towers=2
"""

import os
import sys

if sys.flags.safe_path:  # else Python has added this folder itself
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from towers_cli import train

if __name__ == "__main__":
    sys.exit(train.command())
