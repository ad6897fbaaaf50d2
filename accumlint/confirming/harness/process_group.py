"""What the ranks of a run have together: their number, and what each of them holds."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def world_size() -> int:
    """How many ranks there are, 1 where they have joined no group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gathered(value: Any) -> list[Any]:
    """What each rank has for a value, in their order."""
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    # torch annotates a part of its functions.
    dist.all_gather_object(found, value)  # pyright: ignore[reportUnknownMemberType]
    return found
