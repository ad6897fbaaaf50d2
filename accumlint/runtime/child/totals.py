"""Finds user variables that retain the graphs of losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accumlint.runtime.child.frames import user_frames

_FRAMES, _NAMES = 4, 200


def found() -> list[dict[str, Any]]:
    """Variables in the nearest user frames that hold a sum of losses with its graph, or a list of losses."""
    totals: list[dict[str, Any]] = []
    for frame in user_frames()[:_FRAMES]:
        for name, value in _variables(frame.f_locals):
            if _holds_graph(value):
                totals.append({
                    "name": name, "file": frame.f_code.co_filename,
                    "first": frame.f_code.co_firstlineno, "scope": frame.f_code.co_name,
                })  # fmt: skip
    return totals


def _variables(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Local variables, and the attributes of `self`."""
    for name, value in [*variables.items()][:_NAMES]:
        if name == "self" and hasattr(value, "__dict__"):
            yield from ((f"self.{key}", item) for key, item in [*vars(value).items()][:_NAMES])
        elif not name.startswith("__"):
            yield name, value


def _holds_graph(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        node = value.grad_fn
        return value.numel() == 1 and node is not None and node.name().startswith("Add")
    if isinstance(value, list) and len(value) > 1:
        return all(
            isinstance(item, torch.Tensor) and item.numel() == 1 and item.grad_fn is not None
            for item in (value[0], value[-1])
        )
    return False
