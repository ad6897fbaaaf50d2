"""Applies resource limits, Landlock and seccomp to the process before it executes user code."""

from __future__ import annotations

import os
import resource
from typing import Any

from accumlint.confirming.harness.isolation import landlock, seccomp
from accumlint.confirming.sandbox import local_ports

# The largest file that a job may write; its temporary folder is removed at the end.
_LARGEST_FILE = 4 * 2**30


def limit_memory(gigabytes: float) -> None:
    """Limits the address space, so that a huge allocation fails in this process."""
    _limit(resource.RLIMIT_AS, int(gigabytes * 2**30))


def confine(order: Any, job: Any, world: int, gpu: bool) -> None:
    """Confines this process as the order requires, until it ends.

    Raises:
        OSError: where the kernel refuses.
    """
    limits = order["sandbox"]
    _limit(resource.RLIMIT_CORE, 0)
    # The worker enforces the time limit; this one applies if the worker is gone.
    _limit(resource.RLIMIT_CPU, int(order["limit"]) * (os.cpu_count() or 1) + 10)
    _limit(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    if limits["landlock"]:
        landlock.restrict(
            readable=(*limits["readable"], *job["readable"], "/proc/self"),
            listable=job["listable"],
            writable=(order["scratch"], "/proc/self", *limits["devices"]),
            ports=None if limits["isolated"] else _ports(world),
            sockets=gpu,
        )
    if limits["seccomp"]:
        seccomp.restrict(unix=gpu)


def _ports(world: int) -> tuple[int, ...]:
    """The ports of torchrun's store and of the other ranks."""
    store = int(os.environ["MASTER_PORT"])
    if world == 1:
        return (store,)
    first, last = local_ports()
    return (store, *range(first, last + 1))


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
