"""The sandbox of a run: what this machine has for it, what that leaves open, and the files that a run may read.

bubblewrap, or namespaces without it, hold the whole launch; Landlock and seccomp hold each process that executes a
user's code. Python's audit hooks, in `harness/isolation/audit_hooks.py`, only say in words what was tried.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accumlint.common.frozen import frozen
from accumlint.confirming.harness.isolation import landlock, seccomp
from accumlint.confirming.harness.isolation.kernel import checked, die_with_parent, libc

# What programs need of a system; no key and no password lies there that every user may not read.
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu", "/sys",
    "/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/localtime", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/services", "/etc/timezone",
    "/etc/ssl/openssl.cnf", "/etc/nvidia-container-runtime",
)  # fmt: skip
_OF_PROCESSES = (
    "/proc/cpuinfo", "/proc/devices", "/proc/driver", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo",
    "/proc/modules", "/proc/stat", "/proc/sys", "/proc/uptime", "/proc/version",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
_GPUS = ("/dev/nvidia*", "/dev/kfd", "/dev/dri")
# What a project's outermost folder has in it.
_TOP = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x40000000
_RECURSIVE, _SLAVE, _NO_SETUID, _NO_DEVICES = 0x4000, 0x80000, 2, 4
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


@frozen
class Sandbox:
    """What a machine has: the version of Landlock (0 for none), seccomp, the path of bubblewrap, or namespaces."""

    landlock: int = 0
    seccomp: bool = False
    bubblewrap: str = ""
    namespaces: bool = False

    @property
    def apart(self) -> bool:
        """Whether a launch has a network and shared memory of its own."""
        return bool(self.bubblewrap) or self.namespaces


@frozen
class Run:
    """What is to be run."""

    ranks: int = 1
    gpu: bool = False


@frozen
class Held:
    """What the processes that execute a user's code are held to; sent to them as JSON.

    `readable` is what they may read beside a job's project. `alone`: whether there is no network
    but their own.
    """

    landlock: int
    seccomp: bool
    alone: bool
    devices: tuple[str, ...]
    readable: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def available() -> Sandbox:
    """What this machine has, each tried once on a program that does nothing."""
    idle = shutil.which("true")
    if sys.platform != "linux" or idle is None:
        return Sandbox()
    spoken = landlock.version()
    filters = seccomp.supported() and _runs([idle], seccomp.probe)
    bubblewrap = shutil.which("bwrap") or ""
    if bubblewrap and not _runs(
        [bubblewrap, *_WALLS, "--unshare-net", "--ro-bind", "/", "/", idle]
    ):
        bubblewrap = ""
    return Sandbox(spoken, filters, bubblewrap, not bubblewrap and _runs([idle], _leave))


def _runs(command: Sequence[str], before: Callable[[], None] | None = None) -> bool:
    try:
        ran = subprocess.run(
            command, preexec_fn=before, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return ran.returncode == 0


def has_gpu() -> bool:
    """Whether there is a GPU that a run could use."""
    return any(glob.glob(pattern) for pattern in _GPUS)


def unprotected(has: Sandbox, run: Run) -> Iterator[str]:
    """What nothing keeps a run from on this machine, a line for each."""
    walls = bool(has.bubblewrap)
    if not (has.landlock or walls):
        yield "reads: native code can read every file that you can (no Landlock, no bubblewrap)"
        yield "writes: native code can change every file that you can (no Landlock, no bubblewrap)"
    elif not has.landlock:
        yield "results: native code can overwrite the results of the run (no Landlock)"
    if not has.apart:
        why = "(no bubblewrap, no namespaces)"
        if not has.seccomp or has.landlock < 4:
            yield f"network: native code can connect to other machines {why}"
        elif run.ranks > 1:
            first, last = local_ports()
            yield f"network: native code can connect to ports {first} to {last} of other machines {why}"
    if not has.seccomp:
        end = "; they end with the run" if walls else ""
        yield f"processes: native code can start processes{end} (no seccomp)"
        if not walls and has.landlock < 6:
            yield "signals: native code can end other processes of yours (no seccomp, no bubblewrap)"
    if not has.apart:
        yield "shared memory: the run sees what other programs have in /dev/shm (no bubblewrap, no namespaces)"
    if sys.platform == "win32":
        yield "memory: nothing bounds what a run takes"
    elif run.gpu:
        yield "memory: nothing bounds what a run on a GPU takes"


def local_ports() -> tuple[int, int]:
    """The ports that the system gives to those that ask for any: where ranks listen."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(first), int(last)


def held(has: Sandbox) -> Held:
    """What the processes of a run are held to."""
    devices = (*_DEVICES, *(path for pattern in _GPUS for path in glob.glob(pattern)))
    readable = tuple(dict.fromkeys((*_SYSTEM, *_OF_PROCESSES, *installed())))
    return Held(has.landlock, has.seccomp, has.apart, devices, readable)


def installed() -> list[str]:
    """Where Python and its packages are, as this process finds them."""
    # What the working folder or the user's settings bring is nothing that is installed.
    brought = {"", os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    found = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *(p for p in sys.path if p not in brought),
    ]
    for finder in sys.meta_path:
        # Packages that are installed to be edited say so in a module of setuptools'.
        module = sys.modules.get(getattr(finder, "__module__", ""))
        found += getattr(module, "MAPPING", {}).values()
    found += (str(Path(__file__).parents[1]), os.environ.get("CUDA_HOME", ""))
    found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths = [p for path in found if path for p in (path, os.path.realpath(path))]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path) and not _is_shared(path)]


def project(file: str, roots: Iterable[str]) -> tuple[list[str], list[str]]:
    """What the code of a file may read of its project, and the folders of which it may only see the names.

    That is the project's folder. Of a folder that many share, like the user's home, it is the modules and packages.
    """
    folders = [os.path.dirname(os.path.abspath(file)), *roots]
    parents = Path(folders[0]).parents
    for folder in (Path(folders[0]), *parents):
        if not _is_shared(str(folder)) and any((folder / name).exists() for name in _TOP):
            return [str(folder), *(f for f in roots if not _is_shared(f))], []
    readable: list[str] = [os.path.abspath(file)]
    listable: list[str] = []
    for folder in dict.fromkeys(folders):
        if _is_shared(folder):
            readable += _modules(folder)
            listable.append(folder)
        else:
            readable.append(folder)
    return readable, listable


def _modules(folder: str) -> list[str]:
    return [
        *glob.glob(os.path.join(glob.escape(folder), "*.py")),
        *map(os.path.dirname, glob.glob(os.path.join(glob.escape(folder), "*", "__init__.py"))),
    ]


def _is_shared(folder: str) -> bool:
    """True for the user's home, folders of temporary files, and what is above one of them."""
    inside = os.path.join(os.path.realpath(folder), "")
    return any(
        os.path.join(os.path.realpath(shared), "").startswith(inside)
        for shared in (*_SHARED, tempfile.gettempdir(), os.path.expanduser("~"), _home())
    )


def _home() -> str:
    """The home that the system knows, whatever the environment says."""
    if sys.platform == "win32":
        return os.path.expanduser("~")
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")


_WALLS = (
    "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--die-with-parent", "--dev", "/dev", "--proc", "/proc",
)  # fmt: skip


def inside(
    has: Sandbox, order: Held, readable: Iterable[str], folder: str, command: Sequence[str]
) -> list[str]:
    """The command that runs another in this machine's sandbox, with the projects in `readable`.

    `folder` is what the launch may write to.
    """
    if not has.bubblewrap:
        return list(command)
    walls = [has.bubblewrap]
    paths = {p for path in (*order.readable, *readable) for p in (path, os.path.realpath(path))}
    for path in sorted(paths):
        if os.path.exists(path) and not path.startswith("/proc/"):
            walls += ["--ro-bind", path, path]
    walls += _WALLS
    for device in order.devices[len(_DEVICES) :]:
        walls += ["--dev-bind", device, device]
    walls += ["--bind", folder, folder]
    if order.alone:
        walls.append("--unshare-net")
    return [*walls, *command]


def entering(has: Sandbox, order: Held) -> Callable[[], None]:
    """What a process does right before it becomes the launch."""
    if not has.namespaces or not order.alone:
        return die_with_parent

    def enter() -> None:
        _leave()
        die_with_parent()

    return enter


def _leave() -> None:
    """Gives this process a loopback network and shared memory of its own.

    Raises:
        OSError: where the system does not allow that.
    """
    import fcntl

    asked = libc()
    user, group = os.getuid(), os.getgid()
    apart = _NEW_NET | _NEW_IPC | _NEW_MOUNTS
    if asked.unshare(apart):
        checked(asked.unshare(apart | _NEW_USER), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    private = ctypes.c_ulong(_RECURSIVE | _SLAVE)
    checked(asked.mount(None, b"/", None, private, None), "mount")
    flags = ctypes.c_ulong(_NO_SETUID | _NO_DEVICES)
    checked(asked.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, None), "mount")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH22x", b"lo", 0)
        (old,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, asked), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", old | _UP))
