"""`file_faults.c` from Python: one file operation of a program fails, or is its last."""

import contextlib
import ctypes
import enum
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("file_faults.c")
_LIBRARY = "FILE_FAULTS_LIBRARY"


class Fault(enum.IntEnum):
    """What becomes of the chosen operation."""

    NONE = 0
    FAIL_ONCE = 1  # with an error; the next ones succeed
    FAIL_FROM_HERE = 2  # and so do all later ones, as on a full disk
    STOP = 3  # nothing reaches the disk from here on, as where the process is killed
    TEAR = 4  # half of what it writes does, and then nothing


def build(folder: Path) -> Path:
    """Compiles the library into `folder`; where there is no C compiler, the test is skipped."""
    compiler = os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        pytest.skip(f"needs a C compiler, and there is no {compiler}")
    library = folder / "file_faults.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", library, SOURCE, "-ldl", "-pthread"], check=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """For a process whose file operations go through the library."""
    return {"LD_PRELOAD": str(library), _LIBRARY: str(library)}


class Disk:
    """Faults in this process, which has to have been started with `environment`.

    Attributes:
      operations: how many the last `fault` has counted.
      failed: the operation that failed, by name and path; empty where there were fewer.
    """

    def __init__(self):
        self._library = ctypes.CDLL(os.environ[_LIBRARY])
        self._library.faults_calls.restype = ctypes.c_long
        self._library.faults_what_failed.restype = ctypes.c_char_p
        self.operations, self.failed = 0, ""

    @contextlib.contextmanager
    def fault(
        self, folder: Path, operation: int, how: Fault, error: int = 0, *, reads: bool = False
    ) -> Iterator[None]:
        """While entered, the operation of that number below `folder` fails, counted from 1.

        Args:
          folder: whose files are looked after.
          operation: 0 for none.
          how: it fails.
          error: of the `errno` module.
          reads: whether opening and reading a file count, beside what changes one.
        """
        self._arm(folder, operation, how, error, reads)
        try:
            yield
        finally:
            self.operations = self._library.faults_calls()
            self.failed = self._library.faults_what_failed().decode()
            self._arm("", 0, Fault.NONE, 0, False)

    def _arm(self, folder, operation: int, how: Fault, error: int, reads: bool) -> None:
        number = ctypes.c_long(operation)
        self._library.faults_arm(str(folder).encode(), number, int(how), error, int(reads))
