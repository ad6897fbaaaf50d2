"""Trains on any number of ranks with any number of accumulation steps, and ends with the same parameters.

    python equivalence.py --accumulation-steps 8 --save alone.pt
    torchrun --nproc-per-node 2 equivalence.py --accumulation-steps 4 --save together.pt

Micro-batches hold different numbers of tokens. The gradient is that of the mean over all tokens of the window on all
ranks: the loss is a sum over tokens, divided by the window's tokens on all ranks, times the number of ranks, because
DDP takes the mean over ranks. Ranks take the micro-batches of a window in turn, so that the window is the same however
it is shared out.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, LENGTH, ROWS = 11, 16, 12, 4
WINDOWS, MICROBATCHES = 6, 8
PADDING = -100

Batch = tuple[torch.Tensor, torch.Tensor]


def batches() -> Iterator[Batch]:
    """The micro-batches of the whole training, the same in every process; their rows end in padding."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(WINDOWS * MICROBATCHES):
        tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        lengths = torch.randint(1, LENGTH + 1, (ROWS, 1), generator=generator)
        inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
        labels[torch.arange(LENGTH) >= lengths] = PADDING
        yield inputs, labels


def train(accumulation_steps: int) -> nn.Module:
    rank, world_size = 0, 1
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        nn.Linear(WIDTH, WIDTH),
        nn.Tanh(),
        nn.Linear(WIDTH, VOCABULARY),
    ).double()
    model = DistributedDataParallel(network) if world_size > 1 else network
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = list(batches())[rank::world_size]

    for start in range(0, len(loader), accumulation_steps):
        window = loader[start : start + accumulation_steps]
        tokens = torch.tensor(sum(int((labels != PADDING).sum()) for _, labels in window))
        if world_size > 1:
            dist.all_reduce(tokens)
        for i, (inputs, labels) in enumerate(window):
            last = i == len(window) - 1
            with nullcontext() if last or world_size == 1 else model.no_sync():
                logits = model(inputs)
                loss = F.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=PADDING, reduction="sum"
                )
                (loss * world_size / tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    if world_size > 1:
        dist.destroy_process_group()
    return network


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulation-steps", type=int, default=8)
    parser.add_argument("--save", required=True)
    arguments = parser.parse_args()
    network = train(arguments.accumulation_steps)
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save(network.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
