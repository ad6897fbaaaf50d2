"""Keeps the user's code inside: no network but loopback, no new processes, no writes elsewhere, a limit on memory.

A guard rail against accidents, not a sandbox: native code can get around it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

_PROCESSES = (
    "subprocess.Popen",
    "os.system",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
)
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "shutil.rmtree", "shutil.move", "shutil.copyfile",
)  # fmt: skip
_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


class Forbidden(PermissionError):
    """The user's code tried what a confirmation does not allow."""


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux only; elsewhere the time limit does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def limit_memory(gigabytes: float) -> None:
    """Bounds the address space, so that a huge allocation fails here and not in somebody else's process."""
    if sys.platform == "win32":
        return
    import resource

    most = int(gigabytes * 2**30)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def stay_inside(folders: tuple[str, ...]) -> None:
    """Forbids, until the process ends, what is listed above; `folders` may be written to."""
    inside = tuple(os.path.realpath(folder) + os.sep for folder in folders)

    def may_write(path: Any) -> bool:
        if isinstance(path, int):
            return True
        text = os.path.realpath(os.fsdecode(path))
        return (
            (text + os.sep).startswith(inside) or text == os.devnull or text.startswith("/dev/shm/")
        )

    def opened(args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        writing = (isinstance(mode, str) and bool(set(mode) & set("wax+"))) or (
            isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        )
        if writing and not may_write(path):
            raise Forbidden(f"writes to {os.fsdecode(path)!r}")

    def connected(args: tuple[Any, ...]) -> None:
        address = args[1]
        host = cast("tuple[object, ...]", address)[0] if isinstance(address, tuple) else ""
        if isinstance(host, str) and host and not host.startswith(_LOOPBACK):
            raise Forbidden(f"connects to {host!r}")

    def looked_up(args: tuple[Any, ...]) -> None:
        host = args[0]
        text = os.fsdecode(host) if host else ""
        if text and not text.startswith(_LOOPBACK) and text != os.uname().nodename:
            raise Forbidden(f"looks up {text!r}")

    def changed(args: tuple[Any, ...]) -> None:
        for path in args:
            if isinstance(path, str | bytes | Path) and not may_write(path):
                raise Forbidden(f"changes {os.fsdecode(path)!r}")

    def started(_: tuple[Any, ...]) -> None:
        raise Forbidden("starts a process")

    watched: dict[str, Callable[[tuple[Any, ...]], None]] = {
        "open": opened,
        "socket.connect": connected,
        "socket.getaddrinfo": looked_up,
        **dict.fromkeys(_PROCESSES, started),
        **dict.fromkeys(_CHANGES, changed),
    }

    def hook(event: str, args: tuple[Any, ...]) -> None:
        check = watched.get(event)
        if check is not None:
            check(args)

    sys.addaudithook(hook)
