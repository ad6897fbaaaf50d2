"""The parameters of networks and optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameters_of(owner: Any) -> list[torch.Tensor]:
    """The parameters of a network, an optimizer or a list; none of anything else."""
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    if isinstance(owner, torch.optim.Optimizer):
        return [p for group in owner.param_groups for p in group["params"]]
    items: list[Any] = list(owner) if isinstance(owner, list | tuple) else []
    return [item for item in items if isinstance(item, torch.Tensor)]
