"""Ends the workers of a launcher that died without ending them, as by SIGKILL.

    python keeper.py NOBODY_LEFT SECONDS

Its stdin is a pipe that ends with the launcher, and NOBODY_LEFT the descriptor of one that ends
with the last worker. It leads the process group in which `launch.run` starts the workers, so that
none is missed, whenever the launcher dies. It imports nothing but the standard library.
"""

import os
import select
import signal
import sys


def main(nobody_left: str, seconds: str) -> None:
    """Waits for the launcher's end; then asks the workers to end, and kills them after a while."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its own to the group go to it, too
    os.read(0, 1)
    os.killpg(os.getpid(), signal.SIGTERM)  # a training saves a checkpoint
    select.select([int(nobody_left)], [], [], float(seconds))
    os.killpg(os.getpid(), signal.SIGKILL)  # whoever is left, and this process


if __name__ == "__main__":
    main(*sys.argv[1:])
