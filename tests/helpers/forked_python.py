"""What xdist starts as `python`: a fork of the process that has read all tests."""

import os
import signal
import sys

import first_process

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the fork's
    arguments = sys.argv[sys.argv.index("-c") :]  # options of Python itself come before
    request = first_process.request(arguments, os.getcwd(), os.environ)
    try:
        fork = first_process.Fork(os.environ[first_process.TESTS], request, (0, 1, 2))
    except ConnectionError:
        sys.exit("The process that reads the tests has ended: its message is above.")
    for stream in (0, 1):  # so that a pipe ends with the fork
        os.close(stream)
    sys.exit(fork.exit_code())
