"""One training at a time in a run's folder.

The lock is the kernel's, on a file in the folder (`flock`). It ends with the process that holds it,
however that ends, so what a killed run leaves behind keeps no other run out.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from towers.runs import run_folder

# From a file system that cannot lock, as some network file systems cannot.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class RunLock:
    """Keeps a second training out of a folder while a first one is at work there."""

    def __init__(self, folder: run_folder.RunFolder):
        self._folder = folder
        self._file: int | None = None
        self._is_ours = False  # False, too, where the file system has no locks

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock while entered; makes the folder if there is none.

        Raises:
          RunFolderError: another process holds it, or the folder cannot be written to.
        """
        with run_folder.writing(self._folder.shown):
            is_new = not self._folder.path.exists()
            self._folder.path.mkdir(parents=True, exist_ok=True)
            self._file = self._acquire()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if self._is_ours and self._is_there():
                    self._folder.lock.unlink()
                    if is_new:
                        self._folder.path.rmdir()  # where the run left nothing in it
            with contextlib.suppress(OSError):  # it would hide why the run has ended
                os.close(self._file)
            self._file = None

    def check_held(self) -> None:
        """Refuses to continue in a folder that was removed, moved or replaced during the run.

        Raises:
          RunFolderError: it was.
        """
        if not self._is_there():
            raise run_folder.RunFolderError(
                f"{self._folder.shown}: it, or training.lock in it, was removed, moved or replaced "
                "during the run; nothing more is written there"
            )

    def _acquire(self) -> int:
        while True:
            file = os.open(self._folder.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have removed the file between those two lines.
                if _is_same_file(file, self._folder.lock):
                    self._is_ours = True
                    return file
            except BlockingIOError:
                os.close(file)
                raise run_folder.RunFolderError(
                    f"{self._folder.shown}: another process is training in it; wait for it, stop "
                    "it, or choose another folder"
                ) from None
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    print(
                        f"{self._folder.path}: this file system has no locks; make sure that no "
                        "other training uses the folder",
                        flush=True,
                    )
                    return file
                os.close(file)
                raise
            os.close(file)

    def _is_there(self) -> bool:
        return self._file is not None and _is_same_file(self._file, self._folder.lock)


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
