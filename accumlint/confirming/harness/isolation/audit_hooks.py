"""Audit hooks of the sandbox: refuse forbidden operations of Python code with a readable reason.

Native code bypasses them; the kernel's part of the sandbox, in `confinement`, applies to that as well.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import _posixsubprocess
import errno
import ipaddress
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from accumlint.confirming.harness.source_files import INSTALLED, OURS

_PROCESSES = (
    "subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn",
)  # fmt: skip
_CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.utime", "os.setxattr", "os.removexattr", "shutil.rmtree", "shutil.move", "sqlite3.connect",
)  # fmt: skip
_SIGNALS = ("os.kill", "os.killpg")
_CONNECTING = ("socket.connect", "socket.sendto", "socket.sendmsg")
_LOOKING_UP = ("socket.getaddrinfo", "socket.gethostbyname")
# Functions that can reach the recorder or other threads, with the name that is reported.
_REACHING = {
    "ctypes.dlopen": "ctypes", "gc.get_objects": "gc.get_objects", "gc.get_referrers": "gc.get_referrers",
    "sys._current_frames": "sys._current_frames", "sys.addaudithook": "sys.addaudithook",
}  # fmt: skip
# Readable by everyone; the kernel restricts access per process there.
_WORLD_READABLE = ("/dev/", "/proc/")
_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen ")

_Check = Callable[[tuple[Any, ...]], None]


class Forbidden(PermissionError):
    """The user's code attempted a forbidden operation."""


def stay_inside(
    folder: str, on_refusal: Callable[[str], None], readable: tuple[str, ...]
) -> list[str]:
    """Installs audit hooks that refuse forbidden operations until the process ends; `folder` is writable.

    `on_refusal` receives a description of what user code attempted ("starts a process"), also where the code catches
    the exception. `folder` and `readable` may be read. The returned list collects the functions that user code called
    and that can change recorded results.
    """
    inside = os.path.realpath(folder) + os.sep
    readable_prefixes = (
        inside,
        *(os.path.realpath(path) + os.sep for path in readable),
        *_WORLD_READABLE,
    )
    reached: list[str] = []

    def refuse(what: str) -> None:
        if _is_user_code():
            on_refusal(what)
        raise Forbidden(what)

    def signalled(args: tuple[Any, ...]) -> None:
        if args[0] not in (os.getpid(), os.getpgid(0)):
            refuse("sends a signal to another process")

    def started(_: tuple[Any, ...]) -> None:
        refuse("starts a process")

    watched = {
        **_of_files(inside, readable_prefixes, refuse),
        **_of_network(inside, refuse),
        **dict.fromkeys(_PROCESSES, started),
        **dict.fromkeys(_SIGNALS, signalled),
    }

    def hook(event: str, args: tuple[Any, ...]) -> None:
        check = watched.get(event)
        if check is not None:
            check(args)
        elif event in _REACHING and _REACHING[event] not in reached and _is_user_code():
            reached.append(_REACHING[event])

    _audit_native_calls()
    sys.addaudithook(hook)
    return reached


def _may_write(path: Any, inside: str) -> bool:
    if isinstance(path, int):
        return True
    text = os.path.realpath(os.fsdecode(path))
    return (text + os.sep).startswith(inside) or text.startswith("/dev/shm/") or text == os.devnull


def _of_files(
    inside: str, readable_prefixes: tuple[str, ...], refuse: Callable[[str], None]
) -> dict[str, _Check]:
    """Checks for file events: reads outside of the readable prefixes, writes outside of `inside`."""

    def opened(args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        writing = (isinstance(mode, str) and bool(set(mode) & set("wax+"))) or (
            isinstance(flags, int)
            and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        )
        if writing and not _may_write(path, inside):
            refuse(f"writes to {os.fsdecode(path)!r}")
        if not writing and not isinstance(path, int):
            text = os.path.realpath(os.fsdecode(path))
            # Probing for a missing file is allowed.
            if not (text + os.sep).startswith(readable_prefixes) and os.path.lexists(text):
                refuse(f"reads {os.fsdecode(path)!r}")

    def changed(args: tuple[Any, ...]) -> None:
        for path in args:
            if isinstance(path, str | bytes | Path) and not _may_write(path, inside):
                refuse(f"changes {os.fsdecode(path)!r}")

    return {"open": opened, **dict.fromkeys(_CHANGES, changed)}


def _of_network(inside: str, refuse: Callable[[str], None]) -> dict[str, _Check]:
    """Checks for socket events: only this machine and Unix sockets in `inside` are allowed."""

    def connected(args: tuple[Any, ...]) -> None:
        address = args[1]
        if isinstance(address, tuple):
            host = cast("tuple[object, ...]", address)[0]
            if isinstance(host, str) and host and not _is_here(host):
                refuse(f"connects to {host!r}")
        elif isinstance(address, str | bytes) and not _may_write(address, inside):
            refuse(f"connects to {os.fsdecode(address)!r}")

    def looked_up(args: tuple[Any, ...]) -> None:
        host = os.fsdecode(args[0]) if args[0] else ""
        if host and not _is_here(host) and host != os.uname().nodename:
            refuse(f"looks up {host!r}")

    return {**dict.fromkeys(_CONNECTING, connected), **dict.fromkeys(_LOOKING_UP, looked_up)}


def pretend_folders(folder: str) -> None:
    """Makes `os.mkdir` outside of `folder` succeed without effect."""
    inside = os.path.realpath(folder) + os.sep
    make = os.mkdir

    def making(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        text = os.path.realpath(os.fsdecode(path))
        if (text + os.sep).startswith(inside):
            make(path, mode, dir_fd=dir_fd)
        elif os.path.lexists(text):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)

    os.mkdir = making


def _audit_native_calls() -> None:
    """Raises audit events for native functions that start processes or write files."""
    fork, write = _posixsubprocess.fork_exec, torch._C.PyTorchFileWriter

    def forking(*args: Any) -> Any:
        sys.audit("os.fork")
        return fork(*args)

    def writing(file: Any, *args: Any) -> Any:
        if isinstance(file, str):
            sys.audit("open", file, "wb", 0)
        return write(file, *args)

    _posixsubprocess.fork_exec = forking
    torch._C.PyTorchFileWriter = writing


def _is_here(host: str) -> bool:
    """True for names and addresses of this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _is_user_code() -> bool:
    """True when user code is the nearest caller outside of the standard library and accumlint."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            if any(word in file for word in INSTALLED):
                return False
            if not file.startswith(_LIBRARIES):
                return True
        frame = frame.f_back
    return False
