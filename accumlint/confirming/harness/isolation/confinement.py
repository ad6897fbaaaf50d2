"""Hands this process to the kernel's sandbox before it executes a user's code."""

from __future__ import annotations

import os
import resource
from typing import Any

from accumlint.confirming.harness.isolation import landlock, seccomp
from accumlint.confirming.sandbox import local_ports

# What a loop on fakes may write into one file; its temporary folder is removed in the end.
_LARGEST_FILE = 4 * 2**30


def limit_memory(gigabytes: float) -> None:
    """Bounds the address space, so that a huge allocation fails here and not in somebody else's process."""
    _limit(resource.RLIMIT_AS, int(gigabytes * 2**30))


def confine(order: Any, job: Any, world: int, gpu: bool) -> None:
    """Holds this process to what the order says, until it ends.

    Raises:
        OSError: where the kernel does not do what was announced.
    """
    held = order["sandbox"]
    _limit(resource.RLIMIT_CORE, 0)
    # The worker ends what takes too long; this holds should the worker be gone.
    _limit(resource.RLIMIT_CPU, int(order["limit"]) * (os.cpu_count() or 1) + 10)
    _limit(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    if held["landlock"]:
        landlock.restrict(
            readable=(*held["readable"], *job["readable"], "/proc/self"),
            listable=job["listable"],
            writable=(order["scratch"], "/proc/self", *held["devices"]),
            ports=None if held["alone"] else _ports(world),
            sockets=gpu,
        )
    if held["seccomp"]:
        seccomp.restrict(unix=gpu)


def _ports(world: int) -> tuple[int, ...]:
    """Where torchrun's store listens, and the other ranks do."""
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
