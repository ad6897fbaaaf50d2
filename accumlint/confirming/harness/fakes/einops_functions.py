"""What einops does, where it is not installed: by its patterns, as far as data made on the spot has their sides."""
# pyright: reportUnknownMemberType=false
# torch's own annotations are partial.

from __future__ import annotations

from typing import Any

import torch

from accumlint.confirming.harness.fakes.batches import plain


def _same(value: Any, *_: object, **__: object) -> Any:
    """The sides of data by other names, or in another order: how many numbers there are stays."""
    return value


def _reduced(value: Any, pattern: str = "", reduction: str = "mean", **_: object) -> Any:
    """One number for each row where a side is kept, else one; numbers of rows are what they are."""
    tensor = plain(value)
    if not isinstance(tensor, torch.Tensor):
        return value
    kept = [side for side in pattern.partition("->")[2].split() if side not in ("1", "()")]
    how = {"max": "amax", "min": "amin"}.get(reduction, reduction)
    if not kept:
        return getattr(tensor.flatten(), how)(0)
    return getattr(tensor.flatten(1), how)(1) if tensor.dim() > 1 else tensor


EINOPS = {"rearrange": _same, "repeat": _same, "reduce": _reduced}
