"""What a set-up file may give, loop by loop, and what it is asked for where it gives nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accumlint.config import Settings
from accumlint.confirming.evidence import deciding, roots
from accumlint.confirming.launch import Options
from accumlint.confirming.passes import Overrides
from accumlint.confirming.pipeline import Request, confirm, gathered
from accumlint.confirming.plan import Plan
from accumlint.confirming.result import Confirmation, Verdict
from accumlint.files.inputs.discovery import Target

torch = pytest.importorskip("torch")

from accumlint.confirming.harness.fakes.batches import Data  # noqa: E402 (it needs torch)
from accumlint.confirming.harness.setup_objects import (  # noqa: E402 (so does this)
    CountedBatches,
    PartialNamespace,
    ProvidedAttribute,
    load_setup,
)

pytestmark = pytest.mark.torch

# A window whose loss is not divided, around what each loop has of its own.
LOOP = """\
import torch
import torch.nn.functional as F
from kit import {imported}


class Limits:
    width = 3


def train(model, loader, optimizer, {parameter}accumulation_steps):
    {before}
    for step, batch in enumerate({batches}):
        {batch}
        loss = {loss}
        loss.backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
PLAIN = {
    "imported": "nothing",
    "parameter": "",
    "before": "optimizer.zero_grad()",
    "batches": "loader",
    "batch": "inputs, labels = batch",
    "loss": "F.cross_entropy(model(inputs), labels)",
}
# What a set-up file gives to a loop, as it is written there, and the loop's own lines.
GIVEN: dict[str, tuple[str, dict[str, str]]] = {
    "some of the settings": (
        '"weighing": types.SimpleNamespace(table=torch.zeros(64))',
        {
            "imported": "weighing",
            "loss": "F.cross_entropy(model(inputs), labels) + weighing.table[weighing.vocab_size]",
        },
    ),
    "micro-batches in a list of any name": (
        '"shelf": [(torch.randn(3, 5).double(), torch.randint(5, (3,))) for _ in range(8)]',
        {
            "parameter": "shelf, ",
            "batches": "shelf",
        },
    ),
    "a loader that is asked by next": (
        '"own_loader": [{"pages": torch.randn(3, 5).double(), "marks": torch.randint(5, (3,))}] * 8',
        {
            "parameter": "own_loader, ",
            "batches": "range(accumulation_steps * 8)",
            "batch": "page = next(own_loader)",
            "loss": 'F.cross_entropy(model(page["pages"].squeeze()), page["marks"])',
        },
    ),
    "a name that a function binds itself": (
        '"table": torch.zeros(64)',
        {
            "imported": "make_table",
            "before": "table = make_table()",
            "loss": "F.cross_entropy(model(inputs), labels) + table[len(labels)]",
        },
    ),
    "one of the settings": (
        '"args.spread": torch.zeros(64)',
        {
            "parameter": "args, ",
            "loss": "F.cross_entropy(model(inputs), labels) + args.spread[len(labels)]",
        },
    ),
    "a function": (
        '"likeness": torch.nn.functional.cross_entropy',
        {"imported": "likeness", "loss": "likeness(model(inputs), labels)"},
    ),
}
# Losses that cannot be computed, and the only names that are asked for.
ASKED_FOR: dict[str, tuple[dict[str, str], set[str]]] = {
    "the object that lacks an attribute": (
        {
            "before": "limits = Limits()",
            "loss": "F.cross_entropy(model(inputs), labels) + limits.height / num_items",
        },
        {"self.height"},
    ),
    "what a package's module holds": (
        {
            "imported": "weighing",
            "loss": "F.cross_entropy(model(inputs), labels) + weighing.table[weighing.rows]",
        },
        {"kit.weighing.table"},
    ),
    "a loss that is called": (
        {"imported": "margin_loss", "loss": "margin_loss(model(inputs), labels)"},
        {"kit.margin_loss"},
    ),
    "one of the settings": (
        {
            "parameter": "args, ",
            "loss": "F.cross_entropy(model(inputs), labels) + args.vocab_size.table / num_items",
        },
        {"args.vocab_size"},
    ),
    "what was missing before what failed": (
        {
            "parameter": "args, ",
            "before": "sizes = {name: 1 for name in args.vocab_size.names}",
            "loss": "F.cross_entropy(model(inputs), labels) + sizes[0][1].table[len(labels)] / sizes",
        },
        {"args.vocab_size"},
    ),
    "what would have made what is missing": (
        {
            "imported": "make_table",
            "before": "table = make_table()",
            "loss": "F.cross_entropy(model(inputs), labels) + table[len(labels)]",
        },
        {"kit.make_table"},
    ),
}  # fmt: skip


def confirmed(loops: Sequence[dict[str, str]], folder: Path, setup: str) -> list[Confirmation]:
    """The confirmations of the losses that loops do not divide, with a set-up file."""
    plans: list[Plan] = []
    for number, own in enumerate(loops):
        file = folder / f"train{number}.py"
        file.write_text(LOOP.format(**{**PLAIN, **own}))
        target = Target(file.name, str(file), Settings(folder, select=("ACC102",)))
        found, problems = gathered([Request(target)], Overrides(), mend=False)
        assert (len(found), problems) == (1, []), own
        plans += found
    return confirm(plans, Options(setup=setup), lambda _: None)


def test_a_set_up_file_may_give_anything_by_its_name(tmp_path: Path) -> None:
    objects = tmp_path / "objects.py"
    entries = "".join(f"        {entry},\n" for entry, _ in GIVEN.values())
    objects.write_text(
        f"import types\n\nimport torch\n\n\ndef setup(rank, world, device):\n    return {{\n{entries}    }}\n"
    )
    found = confirmed([own for _, own in GIVEN.values()], tmp_path, str(objects))
    assert dict(zip(GIVEN, (one.verdict for one in found), strict=True)) == dict.fromkeys(
        GIVEN, Verdict.CONFIRMED
    )
    for (entry, _), one in zip(GIVEN.values(), found, strict=True):
        name = entry.split('"')[1]
        assert any(f"{name}`: as the set-up file gives it" in told for told in one.fakes)
        assert one.measured["factor"] == "K"


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    found = confirmed([own for own, _ in ASKED_FOR.values()], tmp_path, "")
    wanted = {what: names for what, (_, names) in ASKED_FOR.items()}
    assert dict(zip(ASKED_FOR, map(asked_for, found), strict=True)) == wanted
    for one in found:
        # Each entry says where it is read, or called.
        entries = re.findall(r'((?: *#.*\n)+) *"(\S+)": \.\.\.,', one.setup)
        assert entries
        for told, name in entries:
            assert re.search(r"(read|called)\s+(# )?at\s+(# )?line\s+(# )?\d+: \S", told), one.setup
            assert ("a function that gives the loss" in told) == ("margin_loss" in name), one.setup
            assert ("a small torch.nn.Module" in told) == (name == "model"), one.setup


def asked_for(found: Confirmation) -> set[str]:
    """The keys of the dictionary that a set-up file returns."""
    return set(re.findall(r'^ +"(\S+)": \.\.\.,', found.setup, re.MULTILINE))


# What is given under a name, and whether it gives micro-batches: by the name, or as a list of what holds tensors.
FED: dict[str, tuple[Any, bool]] = {
    "train_loader": (["anything"], True),
    "shelf": ([(torch.zeros(1), torch.zeros(1))], True),
    "pages": ([{"page": torch.zeros(1)}], True),
    "self.rows": ([[torch.zeros(1)]], True),
    "widths": ([3, 5], False),
    "empty": ([], False),
    "pair": ((torch.zeros(1), torch.zeros(1)), False),
    "mixed": ([(torch.zeros(1),), 3], False),
}


@pytest.mark.parametrize("name", FED)
def test_lists_of_what_holds_tensors_give_micro_batches(name: str, tmp_path: Path) -> None:
    value, feeds = FED[name]
    found = objects(tmp_path, name, value)
    assert isinstance(found, CountedBatches) == feeds
    if not feeds:
        assert found is value


def test_a_loader_that_is_given_is_counted_and_begins_again(tmp_path: Path) -> None:
    data = made_up()
    loader = objects(tmp_path, "loader", ["first", "second"], data)
    assert [next(loader) for _ in range(3)] == ["first", "second", "first"]
    assert (list(loader), len(loader), data.fetched) == (["first", "second"], 2, 5)


def test_settings_that_are_given_in_part_are_asked_for_the_rest() -> None:
    settings = PartialNamespace({"rows": 3}, lambda name: f"made up for {name}")
    assert (settings.rows, settings.width) == (3, "made up for width")
    # Python asks objects for what only few have.
    assert not hasattr(settings, "_repr_html_")


def test_what_is_given_for_an_attribute_stays() -> None:
    class Trainer:
        criterion = ProvidedAttribute("given")

        def __init__(self) -> None:
            self.criterion = "assigned"

    assert Trainer().criterion == "given"


def made_up() -> Data:
    return Data("rows", lambda _: 4, 8, 0, 0, torch.device("cpu"), torch.float64)


def test_a_wrapper_around_what_is_given_stays() -> None:
    own = torch.nn.Linear(2, 2)
    wrapped = torch.nn.Sequential(own)

    class Trainer:
        model = ProvidedAttribute(own)

    trainer = Trainer()
    trainer.model = torch.nn.Linear(2, 2)
    assert trainer.model is own
    trainer.model = wrapped
    assert trainer.model is wrapped


# Statements that failed, each with the names that got fakes, what it lacked, and whether the loop was running.
FAILED = [
    {"line": 3, "names": ["settings"], "wanted": [("path", 3)], "inside": False},
    {"line": 5, "names": ["table"], "wanted": [("settings", 5), ("rows", 5)], "inside": False},
    {"line": 9, "names": ["weight"], "wanted": [("table", 9)], "inside": True},
    {"line": 11, "names": ["loss"], "wanted": [("weight", 11), ("labels", 11)], "inside": True},
]


def test_what_failed_first_is_what_is_missing() -> None:
    assert deciding(FAILED) is FAILED[2]
    assert deciding(FAILED[:2]) is FAILED[1]
    assert deciding([]) is None
    assert roots(FAILED, [("weight", 11), ("labels", 11)], 3) == {
        "path": 3,
        "rows": 5,
        "labels": 11,
    }
    assert roots(FAILED, [("loss", 13)], 3) == {"loss": 13}


def objects(folder: Path, name: str, value: object, data: Data | None = None) -> Any:
    """What a set-up file gives under a name."""
    file = folder / "objects.py"
    file.write_text(
        "import builtins\n\n\ndef setup(rank, world, device):\n    return builtins.given\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.given", {name: value}, raising=False)
        return load_setup(str(file), data or made_up(), 1, torch.device("cpu"))[name]
