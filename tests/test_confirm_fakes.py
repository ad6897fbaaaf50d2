"""Fakes are what they stand for in whatever code meets them, and settings lead where training is."""

from __future__ import annotations

import ast
import copy
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from accumlint.confirming.harness.fakes.batches import Data  # noqa: E402 (it needs torch)
from accumlint.confirming.harness.fakes.fsdp import Reducing  # noqa: E402 (it needs torch)
from accumlint.confirming.harness.fakes.name_words import CLASS  # noqa: E402 (below the skip without torch)
from accumlint.confirming.harness.fakes.networks import Criterion, Model  # noqa: E402 (it needs torch)
from accumlint.confirming.harness.rewriting.source_hints import look  # noqa: E402 (below the skip without torch)
from accumlint.confirming.harness.rewriting.syntax_shapes import loose, other_words  # noqa: E402 (it needs torch)
from accumlint.confirming.harness.rewriting.written_windows import Sized, size_of  # noqa: E402 (it is needed beside those, which need torch)

pytestmark = pytest.mark.torch

# Functions, and the names of theirs that a choice without an else may leave unbound where they are read.
SCOPES: dict[str, set[str]] = {
    "if a:\n    x = 1\nif b:\n    x = 2\nuse(x)": {"x"},
    "if a:\n    x = 1\nuse(x)": {"x"},
    "if a:\n    x = 1\n    use(x)": set(),
    "if a:\n    x = 1\nif a:\n    use(x)": set(),
    "if a:\n    x = 1\nif b:\n    use(x)": {"x"},
    "if a:\n    x = 1\nelse:\n    x = 2\nuse(x)": set(),
    "x = 0\nif a:\n    x = 1\nuse(x)": set(),
    "import x\nif a:\n    x = x.y\nuse(x)": set(),
    "def x(): pass\nif a:\n    x = None\nuse(x)": set(),
    "if a:\n    given = 1\nuse(given)": set(),
}
# Choices, and whether each is one between words that a setting may be.
CHOICES = {
    "if x == 'a': pass\nelif x == 'b': pass": True,
    "if x.y == 'a': pass\nelif x.y in ('b', 'c'): pass": True,
    "if x == 'a': pass": False,
    "if x == 'a': pass\nelif x == 'b': pass\nelse: pass": False,
    "if x == 'a': pass\nelif y == 'b': pass": False,
    "if x != 'a': pass\nelif x != 'b': pass": False,
    "if x: pass\nelif x == 'b': pass": False,
}
# Sources, and the size of windows that they write as a number and as nothing else.
SIZES = {
    "if (i + 1) % 4 == 0: x = loss / 4": 4,
    "if i % 4 == 3: x = loss / 4.0": 4,
    "if not i % 8: loss /= 8": 8,
    "window = min(4, left - i % 4)": 4,
    "if i % 4 == 0: x = 4 * loss": 0,
    "if i % 4 == 0: x = 0.25 * loss": 0,
    "if i % 4 == 0: x = torch.sqrt(loss / 16)": 0,
    "if i % 4 == 0: f(loss, 4)": 0,
    "if i % 4 == 0 and i % 100 == 0: pass": 0,
    "if i % 100 == 0: pass": 0,
    "if i % steps == 0: x = loss / 4": 0,
}  # fmt: skip


def made_up(kind: str = "rows") -> Data:
    return Data(kind, lambda _: 4, 8, 0, 0, torch.device("cpu"), torch.float64)


def test_names_take_a_micro_batch_apart_in_code_that_knows_of_none() -> None:
    batch = made_up("tokens").fetch()
    inputs, labels = batch
    assert inputs is batch.inputs
    assert labels is batch.labels
    for _, (whole, mask) in enumerate(iter([batch])):
        assert whole is batch.inputs
        assert mask is batch.mask
    assert list(batch) == ["input_ids", "attention_mask", "labels"]


def test_names_take_apart_what_a_network_gives() -> None:
    data = made_up()
    loss, _, logits = Model(data, 1)(data.fetch())
    assert loss.dim() == 0
    assert logits.dim() == 2


@pytest.mark.parametrize(
    "name", ["Net", "CustomDataset", "_Model2", "netG", "G_model", "LR", "model"]
)
def test_what_makes_objects_is_no_object_with_a_role(name: str) -> None:
    assert bool(CLASS.search(name)) == (name in ("Net", "CustomDataset", "_Model2"))


def test_a_name_has_a_structure_where_its_parts_are_read() -> None:
    source = look("a.input_ids\nb['labels']\nc.shape\nd[0]\ne.n_words")
    assert source.subscripted == {"a", "b"}


def test_latents_are_drawn_from_what_an_encoder_gives() -> None:
    data = made_up()
    output = Model(data, 1)(data.fetch())
    given = output.latent_dist
    assert all(one is output.logits for one in (given.sample(), given.mode(), given.mean))


def test_a_copied_network_is_given_the_same_data() -> None:
    data = made_up()
    model = Model(data, 1)
    # What it gave has a graph, which cannot be copied.
    data.last = model(data.fetch())
    assert copy.deepcopy(model).data_[0] is data


def test_what_is_frozen_as_a_whole_trains_where_it_is_sharded() -> None:
    model = Model(made_up(), 1).requires_grad_(False)
    recorder: Any = None
    Reducing(model, recorder)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("source", SCOPES)
def test_names_that_settings_leave_unbound(source: str) -> None:
    assert loose(ast.parse(source).body, ["given"]) == SCOPES[source]


@pytest.mark.parametrize("source", CHOICES)
def test_words_that_a_setting_may_be(source: str) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.If)
    assert (other_words(node) is not None) == CHOICES[source]


@pytest.mark.parametrize("source", SIZES)
def test_the_size_of_a_window_is_known_where_its_number_means_nothing_else(source: str) -> None:
    assert size_of(ast.parse(source)) == SIZES[source]


def test_a_size_that_is_sent_through_the_runtime_can_be_one() -> None:
    tree = Sized(4).visit(ast.parse("[i for i in range(6) if i % 4 == 3 or min(4, 6 - i) / 4 < 1]"))
    call = compile(ast.Expression(ast.fix_missing_locations(tree).body[0].value), "", "eval")
    sizes = {4: [3, 4, 5], 1: [*range(6)]}
    for size in sizes:
        runtime = mock.Mock(**{"written.return_value": size})
        assert eval(call, {"__accumlint__": runtime}) == sizes[size]


def test_a_micro_batch_loses_what_it_never_held() -> None:
    batch = made_up().fetch()
    del batch["question_ids"]
    del batch["labels"]
    assert list(batch) == ["pixel_values"]


def test_an_unknown_key_names_no_part_of_a_micro_batch() -> None:
    batch = made_up().fetch()
    batch[object()] = batch.inputs
    batch["extra"] = batch.labels
    assert dict(**batch).keys() == {"pixel_values", "labels", "extra"}


def test_a_micro_batch_that_is_withheld_is_counted_as_failed() -> None:
    data = made_up()
    data.poisoned, data.withholds = 2, True
    assert data.feed(None) is not None
    assert not data.struck
    assert data.feed(None) is None
    assert data.struck


def test_a_criterion_is_given_its_arguments_by_words() -> None:
    data = made_up()
    batch = data.fetch().use()
    logits = Model(data, 1)(batch).logits
    loss = Criterion(data)
    assert loss(outputs=logits, targets=batch.labels) == loss(logits, batch.labels)
