"""Landlock: the kernel denies this process access to files, TCP ports and signals.

The constants are those of <linux/landlock.h>; see landlock(7).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from functools import partial

from accumlint.confirming.harness.isolation.kernel import checked, libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_QUERY_VERSION, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_CONNECT = 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_READS = _READ_FILE | _READ_DIR
_checked = partial(checked, what="Landlock")


def version() -> int:
    """The Landlock ABI version of the kernel, 0 for none."""
    if sys.platform != "linux":
        return 0
    size = ctypes.c_size_t(0)
    return max(libc().syscall(_CREATE_RULESET, None, size, _QUERY_VERSION), 0)


def restrict(
    *,
    readable: Iterable[str],
    listable: Iterable[str],
    writable: Iterable[str],
    ports: Iterable[int] | None,
    sockets: bool,
) -> None:
    """Restricts this process to the listed resources until it ends; it can start no program and send no signal.

    Writable paths are readable. `listable` are folders whose names may be read recursively. `ports` may be connected
    to, None for all. `sockets`: whether abstract sockets of unrelated processes may be connected to.

    Raises:
        OSError: where the kernel refuses.
    """
    abi = version()
    changes = _WRITE_FILE | _REMOVE_AND_MAKE
    changes |= (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    changes |= _IOCTL if abi >= 5 else 0
    handled = _READS | changes | _EXECUTE
    network = _CONNECT if ports is not None and abi >= 4 else 0
    scope = _SIGNALS | (0 if sockets else _ABSTRACT_SOCKETS) if abi >= 6 else 0
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    attributes = struct.pack("QQQ", handled, network, scope)
    lib = libc()
    ruleset = _checked(lib.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))
    try:
        for paths, access in (
            (readable, _READS),
            (listable, _READ_DIR),
            (writable, _READS | changes),
        ):
            for path in paths:
                _allow(lib, ruleset, path, access)
        for port in ports or () if network else ():
            rule = struct.pack("=QQ", _CONNECT, port)
            _checked(lib.syscall(_ADD_RULE, ruleset, _NET_PORT, rule, 0))
        _checked(lib.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(lib.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(lib: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # A missing path needs no rule.
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _FILE_RIGHTS
        if access:
            rule = struct.pack("=Qi", access, place)
            _checked(lib.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(place)
