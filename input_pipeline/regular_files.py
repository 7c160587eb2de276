"""Opens files to be read, and never waits for one.

A named pipe that nobody writes to keeps its reader forever, and a device such as /dev/zero has no
end. Either may lie where a file of data is looked for, by mistake or by malice.
"""

import errno
import os
import stat
from typing import BinaryIO

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


class NotRegularError(OSError):
    """What has the name of a file is a folder, a named pipe, a device, a socket or a link loop."""


def check(path: str | os.PathLike) -> os.stat_result:
    """Looks at what `path` leads to, without opening it.

    Returns:
      Its size, times and so on.

    Raises:
      NotRegularError: it is not a regular file.
      OSError: there is nothing, or it cannot be looked at.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegularError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    return _checked(found, path)


def open_to_read(path: str | os.PathLike) -> BinaryIO:
    """Opens a regular file.

    Raises:
      NotRegularError: `path` leads to something else.
      OSError: there is nothing, or it cannot be opened.
    """
    check(path)
    # It may have been replaced since; so not even this waits, and what was opened is looked at.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _checked(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: str | os.PathLike) -> bytes:
    """The content of a regular file; raises as `open_to_read` does."""
    with open_to_read(path) as file:
        return file.read()


def _checked(found: os.stat_result, path: str | os.PathLike) -> os.stat_result:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise NotRegularError(errno.EINVAL, f"It is {kind}, not a file", os.fspath(path))
    return found
