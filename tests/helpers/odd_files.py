"""What may lie in a file's place without being one, for tests of what reads it."""

import os
import socket
from pathlib import Path

KINDS = {  # to what is said of it
    "folder": "It is a folder, not a file",
    "named pipe": "It is a named pipe, not a file",
    "device": "It is a device, not a file",
    "socket": "It is a socket, not a file",
    "link loop": "Too many levels of symbolic links",
    "dangling link": "No such file",
}


def put(kind: str, path: Path) -> None:
    """Puts one in the place of the file at `path`, which may be there."""
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "named pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link loop":
        path.symlink_to(path.name)
    elif kind == "dangling link":
        path.symlink_to("nothing")
    else:
        _put_socket(path)


def _put_socket(path: Path) -> None:
    """Bound by a short name: that of a socket has at most 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
