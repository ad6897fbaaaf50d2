"""A seccomp filter: the kernel denies system calls to this process.

It covers what Landlock does not: new processes, signals, sockets other than TCP, the memory of other processes, and
administration. It needs no privilege. The numbers are those of the kernel's tables; see seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

from accumlint.confirming.harness.isolation.kernel import checked, libc

# Per architecture, the audit number and the column of the tables below; 0 for a missing system call.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_ADMINISTRATION = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "setns": (308, 268), "unshare": (272, 97),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "syslog": (103, 116),
    "iopl": (172, 0), "ioperm": (173, 0), "vhangup": (153, 58), "mknod": (133, 0), "mknodat": (259, 33),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}  # fmt: skip
_OTHER_PROCESSES = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "pidfd_send_signal": (424, 424), "tkill": (200, 130),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "msgget": (68, 186), "msgsnd": (69, 189),
    "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "mq_open": (240, 180), "mq_unlink": (241, 181),
}  # fmt: skip
_STARTING = {"fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281)}
# Landlock allows these everywhere. They do nothing and report success.
_ATTRIBUTES = {
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "utimensat": (280, 88), "futimesat": (261, 0), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
_KILL, _TGKILL, _QUEUE, _THREAD_QUEUE = (62, 129), (234, 131), (129, 138), (297, 240)
_CLONE, _CLONE3, _PRLIMIT, _PRCTL = (56, 220), (435, 435), (302, 261), (157, 167)
_FCNTL, _IOCTL, _SOCKET = (72, 25), (16, 29), (41, 198)
# Scheduler calls that also accept another process of the same user.
_SCHEDULING = ((142, 118), (144, 119), (203, 122), (314, 274))
# `sendto`, `sendmsg`, `sendmmsg`, each with the argument that holds its flags.
_SENDING, _FAST_OPEN = (((44, 206), 3), ((46, 211), 2), ((307, 269), 3)), 0x20000000
# The last known system call (mseal): newer ones report ENOSYS.
_NEWEST = 462
_CLONE_THREAD = 0x10000
_SET_PDEATHSIG, _SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
# Setting the owner of a file's signals is another means to send one.
_OWNING, _OWNING_BY_IOCTL, _TYPING = (8, 15), (0x8901, 0x8902), (0x5412, 0x541C)
_UNIX, _INET, _INET6, _NETLINK, _STREAM, _TCP = 1, 2, 10, 16, 1, 6

_LOAD, _AND, _EQUAL, _ABOVE, _HAS_BIT, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x45, 0x06
_ALLOWED, _ERRNO = (_RETURN, 0, 0, 0x7FFF0000), 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether there is a filter for this machine; `probe` shows whether the kernel accepts it."""
    return sys.platform == "linux" and platform.machine() in _MACHINES and sys.maxsize > 2**32


def restrict(*, unix: bool) -> None:
    """Denies this process new processes, access to others, and sockets other than TCP, until it ends.

    `unix`: whether Unix sockets are allowed.

    Raises:
        OSError: where the kernel refuses.
    """
    pid = os.getpid()
    audit, column = _MACHINES[platform.machine()]

    def numbers(*tables: dict[str, tuple[int, int]]) -> list[int]:
        return [n for table in tables for both in table.values() if (n := both[column])]

    program = [
        (_LOAD, 0, 0, _MACHINE_AT), (_EQUAL, 1, 0, audit), _refuse(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER_AT), (_ABOVE, 0, 1, _NEWEST), _refuse(errno.ENOSYS),
        *_without(numbers(_ADMINISTRATION, _OTHER_PROCESSES), errno.EPERM),
        *_unless(_PRCTL[column], 0, (_SET_PDEATHSIG,)),
        *_unless(_FCNTL[column], 1, _OWNING),
        *_unless(_IOCTL[column], 1, (*_OWNING_BY_IOCTL, *_TYPING)),
        *_only(_PRLIMIT[column], 0, (0, pid)),
        *_without(numbers(_ATTRIBUTES), 0),
        *_without(numbers(_STARTING), errno.EPERM),
        # glibc falls back to the older call where this one is missing.
        *_without([_CLONE3[column]], errno.ENOSYS),
        *_block(_CLONE[column], [
            (_LOAD, 0, 0, _ARGUMENTS_AT), (_HAS_BIT, 1, 0, _CLONE_THREAD), _refuse(errno.EPERM), _ALLOWED,
        ]),
        *_only(_KILL[column], 0, (pid, 0, 2**32 - pid)),
        *(one for call in (_TGKILL, _QUEUE, _THREAD_QUEUE) for one in _only(call[column], 0, (pid,))),
        # Threads set their affinity by thread ids, which are unknown here; that is denied.
        *(one for call in _SCHEDULING for one in _only(call[column], 0, (0, pid))),
        *_block(_SOCKET[column], _sockets(unix)),
        # Sending can connect as well (TCP Fast Open), which Landlock does not check.
        *(one for call, flags in _SENDING for one in _without_bit(call[column], flags, _FAST_OPEN)),
        _ALLOWED,
    ]  # fmt: skip
    _install(program)


def probe() -> None:
    """Installs a filter that allows everything.

    Raises:
        OSError: where the kernel refuses.
    """
    _install([_ALLOWED])


def _sockets(unix: bool) -> list[Instruction]:
    """Allows TCP and netlink, with `unix` Unix sockets; MPTCP and SMC would connect without Landlock's check."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT),
        (_EQUAL, 4, 0, _INET), (_EQUAL, 3, 0, _INET6),
        (_EQUAL, 10, 0, _NETLINK), (_EQUAL, 9, 0, _UNIX if unix else _NETLINK), _refuse(errno.EACCES),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8), (_AND, 0, 0, 0xF), (_EQUAL, 1, 0, _STREAM), _refuse(errno.EACCES),
        (_LOAD, 0, 0, _ARGUMENTS_AT + 16), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, _TCP), _refuse(errno.EACCES), _ALLOWED,
    ]  # fmt: skip


def _refuse(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _without(calls: Iterable[int], number: int) -> list[Instruction]:
    """Denies system calls with an error; 0 makes them succeed without effect."""
    return [one for call in calls for one in ((_EQUAL, 0, 1, call), _refuse(number))]


def _only(call: int, argument: int, values: Sequence[int]) -> list[Instruction]:
    """Denies a system call unless an argument has one of these values."""
    return _decided(call, argument, values, [_refuse(errno.EPERM), _ALLOWED])


def _unless(call: int, argument: int, values: Sequence[int]) -> list[Instruction]:
    """Denies a system call where an argument has one of these values."""
    return _decided(call, argument, values, [_ALLOWED, _refuse(errno.EPERM)])


def _decided(
    call: int, argument: int, values: Sequence[int], ends: Sequence[Instruction]
) -> list[Instruction]:
    """Ends with the second of two decisions where an argument has one of these values, else with the first."""
    last = len(values)
    tests = [(_EQUAL, last - at, 0, value) for at, value in enumerate(values)]
    return _block(call, [_argument(argument), *tests, *ends])


def _without_bit(call: int, argument: int, bit: int) -> list[Instruction]:
    """Denies a system call where an argument has a bit set."""
    tests = [_argument(argument), (_HAS_BIT, 0, 1, bit), _refuse(errno.EPERM)]
    return _block(call, [*tests, _ALLOWED])


def _argument(number: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * number)


def _block(call: int, instructions: Sequence[Instruction]) -> list[Instruction]:
    """Instructions for one system call; they must end with a decision."""
    return [(_EQUAL, 0, len(instructions), call), *instructions]


def _install(program: Sequence[Instruction]) -> None:
    code = b"".join(struct.pack("=HBBI", *one) for one in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(program), ctypes.addressof(buffer))
    lib = libc()
    checked(lib.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "seccomp")
    checked(lib.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0), "seccomp")
