"""Paths on which the same happens share their runs."""

from __future__ import annotations

import pytest

from accumlint import reading, tracing
from accumlint.reading.project import Project

LOOP = """\
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(args, model, loader, optimizer):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / args.accumulation_steps
        if args.flag:
            {told}
        loss.backward()
        if (i + 1) % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("told", "different"),
    [
        ("raw = model.module if isinstance(model, DistributedDataParallel) else model", 1),
        ("optimizer.zero_grad()", 2),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", 2),
        ("loss.backward(retain_graph=True)", 2),
        ("optimizer.step()", 2),
    ],
)
def test_paths_share_their_runs_where_the_same_happens(told: str, different: int) -> None:
    project = Project()
    program = reading.read(LOOP.format(told=told), "train.py", project)
    (traces,) = tracing.explore(program, project).traces
    assert [trace.assumptions for trace in traces] == [
        (("args.flag", "true"),),
        (("args.flag", "false"),),
    ]
    assert len({id(trace.runs) for trace in traces}) == different
