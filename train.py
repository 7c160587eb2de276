"""Trains an image classifier on towers; see towers_cli/train.py.

python train.py --train_dir=runs/first --num_towers=2
"""

import sys

from towers_cli import train

if __name__ == "__main__":
    sys.exit(train.command())
