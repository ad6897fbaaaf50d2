"""A loss that another file works out is followed, however the loop comes by the model or the criterion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import pytest
from helpers import findings

IMPORTS = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass
from typing import NamedTuple
from types import SimpleNamespace
"""
# What becomes of the logits: a mean over the tokens that are not padding, or over rows.
MASKED = """
nll = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
mask = (y != self.pad).float()
loss = (nll * mask).sum() / mask.sum()
"""
PICKED = """
keep = y != self.pad
nll = F.cross_entropy(self.only(logits, keep), y[keep], reduction="none")
loss = nll.mean()
"""
IN_A_TABLE = """
mask = (y != self.pad).float()
nll = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
losses = {}
losses.update({"tokens": (nll * mask).sum() / mask.sum()})
loss = losses["tokens"]
"""
COUNTED = """
padding = y == self.pad
total = y.numel() - padding.sum().item()
nll = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
loss = nll.masked_fill(padding, 0).sum() / total
"""
ROWS = """
loss = F.cross_entropy(logits.mean(dim=1), y[:, 0])
"""
NET = """
class Net(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.pad = args.pad
        self.head = nn.Linear(args.dim, args.words)

    def only(self, logits, keep):
        return logits[keep].contiguous()

    def forward(self, x, y):
        logits = self.head(x)
{loss}
        return {given}
"""
LOOP = """
def train({parameters}):
{making}
    for i, (x, y) in enumerate(loader):
        loss = {call}
        (loss / args.accumulation_steps).backward()
        if (i + 1) % args.accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

MAKING = "model = {how}\noptimizer = torch.optim.AdamW(model.parameters())\n"


@dataclass(frozen=True)
class Source:
    """How a loop comes by its model: what makes it there, and what other files say."""

    how: str
    net: str = ""
    call: str = "model(x, y)"
    given: str = "loss"
    annotation: str = ""
    base: str = "nn.Module"


WITH_DICT = "MODELS = {'net': Net}\n"
CHOSEN = """
def build(args):
    if args.model == "net":
        return Net(args)
    elif args.model == "other":
        return Other(args)
    raise NotImplementedError(args.model)
"""
OUTER = """
class Outer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.net = Net(args)

    def forward(self, x, y):
        return self.net(x, y)
"""
DISPATCHED = """
class Tasks(Net):
    def forward(self, x, y, task):
        if task.startswith("words"):
            return self.words(x, y)
        elif task.startswith("rows"):
            return self.rows(x, y)
        raise ValueError(task)

    def words(self, x, y):
        return Net.forward(self, x, y)

    def rows(self, x, y):
        return F.cross_entropy(self.head(x)[:, 0], y[:, 0])
"""
RECORD = "\n\n@dataclass\nclass Output:\n    loss: torch.Tensor\n    logits: torch.Tensor\n"
TUPLE = "\n\nclass Output(NamedTuple):\n    loss: torch.Tensor\n    logits: torch.Tensor\n"
SOURCES = {
    "its class": Source("Net(args)"),
    "a checkpoint": Source("Net.from_pretrained(args.path)", base="PreTrainedModel"),
    "a table of classes": Source("MODELS[args.model](args)", WITH_DICT),
    "a function that chooses": Source("build(args)", CHOSEN),
    "an annotation of what is unknown": Source("", annotation="Net"),
    "a module around it": Source("Outer(args)", OUTER),
    "a method for each task": Source("Tasks(args)", DISPATCHED, "model(x, y, task=args.task)"),
    "a dataclass": Source(
        "Net(args)", RECORD, "model(x, y).loss", "Output(loss=loss, logits=logits)"
    ),
    "a named tuple": Source("Net(args)", TUPLE, "model(x, y).loss", "Output(loss, logits)"),
    "a namespace": Source("Net(args)", "", "model(x, y).loss", "SimpleNamespace(loss=loss)"),
}


def written(folder: Path, source: Source, loss: str) -> Path:
    """The loop in a project whose other file holds the model."""
    (folder / ".git").mkdir()
    net = NET.format(loss=indent(loss, " " * 8), given=source.given).replace(
        "nn.Module", source.base
    )
    imports = f"{IMPORTS}from transformers import PreTrainedModel\n"
    (folder / "net.py").write_text(imports + net + source.net)
    making = MAKING.format(how=source.how)
    if source.annotation:
        making = (
            f"model: {source.annotation} = made_by_settings(args)\n{making.partition(chr(10))[2]}"
        )
    loop = LOOP.format(parameters="args, loader", making=indent(making, " " * 4), call=source.call)
    train = folder / "train.py"
    names = "Net, " + ", ".join(
        name for name in ("MODELS", "build", "Outer", "Tasks") if name in source.net
    )
    train.write_text(f"import torch\nfrom net import {names.removesuffix(', ')}\n{loop}")
    return train


@pytest.mark.parametrize(
    "loss", [MASKED, PICKED, IN_A_TABLE, COUNTED], ids=["masked", "picked", "in a table", "counted"]
)
@pytest.mark.parametrize("source", SOURCES)
def test_a_mean_over_tokens_is_found_in_another_file(
    tmp_path: Path, source: str, loss: str
) -> None:
    train = written(tmp_path, SOURCES[source], loss)
    assert "ACC101" in {code for _, code in findings(train.read_text(), str(train))}


@pytest.mark.parametrize("source", SOURCES)
def test_a_mean_over_rows_is_none(tmp_path: Path, source: str) -> None:
    train = written(tmp_path, SOURCES[source], ROWS)
    assert "ACC101" not in {code for _, code in findings(train.read_text(), str(train))}


@pytest.mark.parametrize("pad", ["0", "pad", "args.pad", "tokenizer.pad_token_id"])
def test_targets_that_a_loop_unpacks_are_no_number_of_the_loop(pad: str) -> None:
    making = "optimizer = torch.optim.AdamW(model.parameters())"
    call = f"F.cross_entropy(model(x)[y != {pad}], y[y != {pad}])"
    loop = LOOP.format(
        parameters="args, model, loader, pad, tokenizer", making=indent(making, " " * 4), call=call
    )
    source = f"import torch\nimport torch.nn.functional as F\n{loop}"
    assert "ACC101" in {code for _, code in findings(source)}
