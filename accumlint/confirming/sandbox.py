"""The sandbox of a run: available mechanisms, the gaps that they leave, and the files that a run may read.

bubblewrap, or namespaces without it, isolate the whole launch; Landlock and seccomp confine each process that executes
user code. Python's audit hooks, in `harness/isolation/audit_hooks.py`, only report refused operations.
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

# System files that programs need; all are world-readable.
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu", "/sys",
    "/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/locale.alias", "/etc/localtime", "/etc/mime.types",
    "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/services", "/etc/timezone",
    "/etc/ssl/openssl.cnf", "/etc/nvidia-container-runtime",
)  # fmt: skip
_PROC_FILES = (
    "/proc/cpuinfo", "/proc/devices", "/proc/driver", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo",
    "/proc/modules", "/proc/stat", "/proc/sys", "/proc/uptime", "/proc/version",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")
_GPUS = ("/dev/nvidia*", "/dev/kfd", "/dev/dri")
# Entries that mark the root folder of a project.
_TOP = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg")
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x40000000
_RECURSIVE, _SLAVE, _NO_SETUID, _NO_DEVICES = 0x4000, 0x80000, 2, 4
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


@frozen
class Sandbox:
    """The available mechanisms: Landlock's ABI version (0 for none), seccomp, the path of bubblewrap, or namespaces."""

    landlock: int = 0
    seccomp: bool = False
    bubblewrap: str = ""
    namespaces: bool = False

    @property
    def isolated(self) -> bool:
        """Whether a launch has its own network and shared memory."""
        return bool(self.bubblewrap) or self.namespaces


@frozen
class Run:
    """The properties of a run that its sandbox depends on."""

    ranks: int = 1
    gpu: bool = False


@frozen
class Confinement:
    """The limits of processes that execute user code; sent to them as JSON.

    `readable` is what they may read besides a job's project. `isolated`: they have their own network.
    """

    landlock: int
    seccomp: bool
    isolated: bool
    devices: tuple[str, ...]
    readable: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def available() -> Sandbox:
    """The mechanisms of this machine, each tried on an idle program."""
    idle = shutil.which("true")
    if sys.platform != "linux" or idle is None:
        return Sandbox()
    abi = landlock.version()
    filters = seccomp.supported() and _runs([idle], seccomp.probe)
    bubblewrap = shutil.which("bwrap") or ""
    if bubblewrap and not _runs(
        [bubblewrap, *_WALLS, "--unshare-net", "--ro-bind", "/", "/", idle]
    ):
        bubblewrap = ""
    return Sandbox(abi, filters, bubblewrap, not bubblewrap and _runs([idle], _leave))


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
    """Whether a GPU is available to a run."""
    return any(glob.glob(pattern) for pattern in _GPUS)


def unprotected(has: Sandbox, run: Run) -> Iterator[str]:
    """The missing protections on this machine, a line for each."""
    walls = bool(has.bubblewrap)
    if not (has.landlock or walls):
        yield "reads: native code can read every file that you can (no Landlock, no bubblewrap)"
        yield "writes: native code can change every file that you can (no Landlock, no bubblewrap)"
    elif not has.landlock:
        yield "results: native code can overwrite the results of the run (no Landlock)"
    if not has.isolated:
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
    if not has.isolated:
        yield "shared memory: the run sees what other programs have in /dev/shm (no bubblewrap, no namespaces)"
    if sys.platform == "win32":
        yield "memory: nothing bounds what a run takes"
    elif run.gpu:
        yield "memory: nothing bounds what a run on a GPU takes"


def local_ports() -> tuple[int, int]:
    """The ephemeral ports of the system, on which ranks listen."""
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32768, 60999
    return int(first), int(last)


def confinement(has: Sandbox) -> Confinement:
    """The limits of the processes of a run."""
    devices = (*_DEVICES, *(path for pattern in _GPUS for path in glob.glob(pattern)))
    readable = tuple(dict.fromkeys((*_SYSTEM, *_PROC_FILES, *installed())))
    return Confinement(has.landlock, has.seccomp, has.isolated, devices, readable)


def installed() -> list[str]:
    """The folders of Python and its packages, as this process finds them."""
    # The working folder and PYTHONPATH are not installed packages.
    brought = {"", os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    found = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *(p for p in sys.path if p not in brought),
    ]
    for finder in sys.meta_path:
        # setuptools registers editable installs in a finder module.
        module = sys.modules.get(getattr(finder, "__module__", ""))
        found += getattr(module, "MAPPING", {}).values()
    found += (str(Path(__file__).parents[1]), os.environ.get("CUDA_HOME", ""))
    found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    paths = [p for path in found if path for p in (path, os.path.realpath(path))]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path) and not _is_shared(path)]


def project(file: str, roots: Iterable[str]) -> tuple[list[str], list[str]]:
    """The files of a project that its code may read, and the folders that it may only list.

    That is the project's folder. In a shared folder, like the user's home, only modules and packages are readable.
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
    """True for the user's home, temporary folders, and their parents."""
    inside = os.path.join(os.path.realpath(folder), "")
    return any(
        os.path.join(os.path.realpath(shared), "").startswith(inside)
        for shared in (*_SHARED, tempfile.gettempdir(), os.path.expanduser("~"), _home())
    )


def _home() -> str:
    """The home folder from the user database, independent of the environment."""
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
    has: Sandbox, order: Confinement, readable: Iterable[str], folder: str, command: Sequence[str]
) -> list[str]:
    """The command that runs another in bubblewrap, with readable projects and a writable folder."""
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
    if order.isolated:
        walls.append("--unshare-net")
    return [*walls, *command]


def entering(has: Sandbox, order: Confinement) -> Callable[[], None]:
    """The function that the launched process calls before exec."""
    if not has.namespaces or not order.isolated:
        return die_with_parent

    def enter() -> None:
        _leave()
        die_with_parent()

    return enter


def _leave() -> None:
    """Moves this process to its own loopback network and shared memory.

    Raises:
        OSError: where the system does not allow that.
    """
    import fcntl

    lib = libc()
    user, group = os.getuid(), os.getgid()
    flags_ = _NEW_NET | _NEW_IPC | _NEW_MOUNTS
    if lib.unshare(flags_):
        checked(lib.unshare(flags_ | _NEW_USER), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    private = ctypes.c_ulong(_RECURSIVE | _SLAVE)
    checked(lib.mount(None, b"/", None, private, None), "mount")
    flags = ctypes.c_ulong(_NO_SETUID | _NO_DEVICES)
    checked(lib.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, None), "mount")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        lib = struct.pack("16sH22x", b"lo", 0)
        (old,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _GET_FLAGS, lib), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", old | _UP))
