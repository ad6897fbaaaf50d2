"""Hands this process to the kernel's sandbox before it executes a user's code."""

from __future__ import annotations

import os
import sys
from typing import Any

from accumlint.confirming.harness.isolation import landlock, seccomp
from accumlint.confirming.sandbox import local_ports

# What a loop on stand-ins may write into one file; its temporary folder is removed in the end.
_LARGEST_FILE = 4 * 2**30


def limit_memory(gigabytes: float) -> None:
    """Bounds the address space, so that a huge allocation fails here and not in somebody else's process."""
    if sys.platform != "win32":
        import resource

        _limit(resource.RLIMIT_AS, int(gigabytes * 2**30))


def confine(
    order: Any, job: Any, world: int, gpu: bool, scratch: str, allowed: frozenset[str] = frozenset()
) -> None:
    """Holds this process to what the order says, until it ends; `scratch` may be written to.

    Raises:
        OSError: where the kernel does not do what was announced.
    """
    held = order["sandbox"]
    if sys.platform != "win32":
        import resource

        _limit(resource.RLIMIT_CORE, 0)
        # The worker ends what takes too long; this holds should the worker be gone.
        _limit(resource.RLIMIT_CPU, int(order["limit"]) * (os.cpu_count() or 1) + 10)
        if "arguments" not in job:
            _limit(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    processes, network = "processes" in allowed, "network" in allowed
    if held["landlock"]:
        readable = held["readable"]
        landlock.restrict(
            readable=None if readable is None else (*readable, *job["readable"], "/proc/self"),
            listable=job["listable"],
            writable=None if "writes" in allowed else (scratch, "/proc/self", *held["devices"]),
            ports=None if network or held["alone"] else _ports(world),
            execute=processes,
            signals=processes,
            sockets=processes or gpu or network,
        )
    if held["seccomp"]:
        seccomp.restrict(
            processes=processes, network=network, writes="writes" in allowed, unix=processes or gpu
        )


def _ports(world: int) -> tuple[int, ...]:
    """Where torchrun's store listens, and the other ranks do."""
    store = int(os.environ["MASTER_PORT"])
    if world == 1:
        return (store,)
    first, last = local_ports()
    return (store, *range(first, last + 1))


def _limit(kind: int, most: int) -> None:
    import resource

    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
