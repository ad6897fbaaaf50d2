"""The process group of a run: its size, and values gathered from all ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def world_size() -> int:
    """The number of ranks, 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gathered(value: Any) -> list[Any]:
    """The value of each rank, in order."""
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    # torch annotates only some of its functions.
    dist.all_gather_object(found, value)  # pyright: ignore[reportUnknownMemberType]
    return found
