"""What the Linux kernel is asked for: that a process ends with its parent, and that it writes to some folders only.

The latter is Landlock, which refuses what native code does as well; the constants are those of <linux/landlock.h>, and
landlock(7) tells what they mean.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_ASKED, _PATH_BENEATH, _NO_NEW_PRIVS = 1, 1, 38
# Writing, removing and making; renames across folders came with the second version, truncation with the third.
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SIGNALS = 1 << 1


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux only; elsewhere the time limit does)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def hold_to(folders: tuple[str, ...]) -> bool:
    """Lets this process, until it ends, change nothing but `folders`; False where the kernel cannot do that.

    It can send signals to nobody but itself either, from the sixth version of Landlock on.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_ASKED)
    if version < 1:
        return False
    handled = _WRITES | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("QQQ", handled, 0, _SIGNALS if version >= 6 else 0)
    size = 24 if version >= 6 else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for folder in folders:
            _allow(libc, ruleset, folder, handled)
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return not libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)
