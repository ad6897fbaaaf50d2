"""What is found depends neither on a program's layout and names, nor on what stands or is checked beside it."""

from __future__ import annotations

import ast
import io
import keyword
import random
import subprocess
import sys
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP, ROOT, alone, markers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accumlint.check import Examined, Shared, check_bytes, examine
from accumlint.common.big_trees import room_to_recurse
from accumlint.common.problem import Kind
from accumlint.config import Settings
from accumlint.files.inputs.discovery import Target
from accumlint.files.source import lines, parsed
from accumlint.reading import pruning

FILES = sorted(
    file for file in (ROOT / "fixtures").glob("acc*/bad_*.py") if ".fixed" not in file.name
)
# One wrong fixture of each rule about loops.
ONE_EACH = [next(f for f in FILES if f.parent == folder) for folder in {f.parent: 0 for f in FILES}]
TRAINING = [file for file in ONE_EACH if not file.parent.name.startswith("acc9")]

# Every run draws the same examples, and none is told to be slow: a busy machine must not change the outcome.
steady = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    max_examples=40,
)


@cache
def found(source: str, also: str = "") -> list[tuple[str, str]]:
    """Code and statement of each finding: what stays when lines move. No fix is tried."""
    opted = (also,) if also else ()
    target = alone(extend_select=opted)
    with room_to_recurse():
        result = examine(source.encode("utf-8", "surrogatepass"), target, Shared())
    checked = result.checked if isinstance(result, Examined) else result
    assert not [problem for problem in checked.problems if problem.kind is Kind.FAULT]
    return [(report.code, report.statement) for report in checked.reports]


def codes(source: str, also: str = "") -> Counter[str]:
    return Counter(code for code, _ in found(source, also))


def own(file: Path) -> str:
    return file.parent.name.upper()


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


# A training loop that may be anything, put together from what loops are made of.
_NAMES = st.sampled_from(
    ["model", "loss", "optimizer", "scaler", "loader", "step", "N", "x", "total"]
)
_VALUES = st.recursive(
    st.one_of(_NAMES, st.sampled_from(["0", "1", "4", "None", "True", "'a'", "[]", "loss.item()"])),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner),
        st.builds("{}({})".format, _NAMES, inner),
        st.builds("{}[{}]".format, _NAMES, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("[{} for {} in {}]".format, inner, _NAMES, inner),
        st.builds("(lambda: {})".format, inner),
    ),
    max_leaves=5,
)
_SIMPLE = st.one_of(
    st.builds("{} = {}".format, _NAMES, _VALUES),
    st.builds("{} {}= {}".format, _NAMES, st.sampled_from("+-*/%"), _VALUES),
    st.builds("{}.backward()".format, _NAMES),
    st.sampled_from(
        ["optimizer.step()", "optimizer.zero_grad()", "scaler.update()", "scaler.unscale_(optimizer)",
         "scaler.scale(loss).backward()", "scaler.step(optimizer)", "break", "continue", "return loss", "pass",
         "torch.nn.utils.clip_grad_norm_(model.parameters(), 1)", "del loss", "yield loss"]
    ),
)  # fmt: skip
_HEADS = st.one_of(
    st.builds("if {}:".format, _VALUES),
    st.builds("while {}:".format, _VALUES),
    st.builds("for {} in {}:".format, _NAMES, _VALUES),
    st.builds("for step, {} in enumerate({}):".format, _NAMES, _NAMES),
    st.builds("with {}:".format, _VALUES),
    st.sampled_from(["with model.no_sync():", "def inner(x):", "class Inner:", "if (step + 1) % N == 0:"]),
)  # fmt: skip


def _joined(blocks: list[list[str]]) -> list[str]:
    return [line for block in blocks for line in block]


def _indented(head: str, body: list[str]) -> list[str]:
    return [head, *(f"    {line}" for line in body)]


_BLOCKS = st.recursive(
    _SIMPLE.map(lambda line: [line]),
    lambda inner: st.builds(
        _indented, _HEADS, st.lists(inner, min_size=1, max_size=4).map(_joined)
    ),
    max_leaves=14,
)
LOOPS = st.lists(_BLOCKS, min_size=1, max_size=4).map(
    lambda held: "\n".join(
        ["import torch", *_indented("def train(model, loader, optimizer, N):", _joined(held))]
    )
)


@steady
@given(LOOPS)
def test_any_loop_is_checked(source: str) -> None:
    assert isinstance(found(source), list)


def _any_program() -> st.SearchStrategy[str]:
    # Its import reads all of Python's grammar, for seconds.
    from hypothesmith import from_grammar

    return from_grammar()


@settings(steady, max_examples=15)
@given(st.deferred(_any_program))
def test_any_program_is_checked(source: str) -> None:
    assert isinstance(found(f"{source}\nloss.backward()\n"), list)


@settings(steady, max_examples=60)
@given(st.data())
def test_any_damage_is_borne(data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(TRAINING)).read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(source)))
    end = min(len(source), start + data.draw(st.integers(0, 40)))
    put = data.draw(
        st.text(max_size=5) | st.sampled_from(["(", ")", ":", "\n    ", "'''", "\\", "\0"])
    )
    assert isinstance(found(source[:start] + put + source[end:]), list)


@pytest.mark.parametrize("file", ONE_EACH[::2], ids=name_of)
def test_layout_does_not_matter(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert found(_spread(source), own(file)) == found(source, own(file))


def _spread(source: str) -> str:
    """The same program with a blank line and a comment above every statement."""
    beginning: set[int] = set()
    first = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            first = True
        elif first and token.string.strip() and token.type != tokenize.COMMENT:
            beginning.add(token.start[0])
            first = False
    spread: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        if number in beginning and number > 1:
            indent = line[: len(line) - len(line.lstrip())]
            spread += ["", f"{indent}# What comes next is the same."]
        spread.append(line)
    return "\n".join(spread) + "\n"


def test_the_formatter_does_not_matter(tmp_path: Path) -> None:
    sources: dict[Path, str] = {}
    for file in ONE_EACH[1::4]:
        sources[tmp_path / f"{file.parent.name}.py"] = file.read_text(encoding="utf-8")
    for file, source in sources.items():
        file.write_text(source, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--quiet", "--line-length", "40"]
    subprocess.run([*ruff, str(tmp_path)], check=True)
    changed = 0
    for file, source in sources.items():
        after = file.read_text(encoding="utf-8")
        changed += after != source
        assert codes(after, file.stem.upper()) == codes(source, file.stem.upper()), file.stem
    assert changed > len(sources) / 2


# What a name means is told by itself in these: the reading knows roles by them.
_MEANING = (
    "loss", "optim", "model", "net", "scal", "sched", "loader", "batch", "step", "accum", "epoch", "grad", "total",
    "token", "rank", "world", "label", "target", "mask", "train", "data", "engine", "accelerator", "fabric", "running",
    "num", "len", "count", "size", "pad", "criterion", "logit", "lr", "norm", "ema", "ids", "input", "output", "config",
    "args", "self", "cls", "trainer", "generator", "critic", "student", "teacher", "policy", "backward", "forward",
)  # fmt: skip


@pytest.mark.parametrize("file", TRAINING[1::2], ids=name_of)
def test_names_without_a_meaning_do_not_matter(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    renamed = _renamed(source)
    assert codes(renamed, own(file)) == codes(source, own(file))


def _renamed(source: str) -> str:
    """The program with other names for the plain variables of its functions."""
    tree = ast.parse(source)
    taken = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    fixed = {word for n in ast.walk(tree) if isinstance(n, ast.keyword) and (word := n.arg)}
    fixed |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    plain = {
        node.id
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and not any(word in node.id.lower() for word in _MEANING)
    }
    fixed |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    fixed |= {
        w for n in ast.walk(tree) if isinstance(n, ast.Global | ast.Nonlocal) for w in n.names
    }
    names = {
        name: f"zz{number}"
        for number, name in enumerate(sorted(plain - fixed))
        if not keyword.iskeyword(name) and f"zz{number}" not in taken
    }
    tokens = [
        token._replace(string=names.get(token.string, token.string))
        if token.type == tokenize.NAME
        else token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
    ]
    return tokenize.untokenize([(token.type, token.string) for token in tokens])


def test_the_order_and_company_of_files_do_not_matter(run: Run, tmp_path: Path) -> None:
    alone: dict[str, str] = {}
    for file in TRAINING[::8]:
        target = tmp_path / f"{file.parent.name}.py"
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
        alone[target.name] = "".join(_lines(run, target.name))
    shuffled = list(alone)
    random.Random(0).shuffle(shuffled)
    assert "".join(_lines(run, *shuffled)) == "".join(alone[name] for name in sorted(alone))
    assert "".join(_lines(run)) == "".join(alone[name] for name in sorted(alone))


def test_files_that_import_each_other_are_told_the_same_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").write_text(
        "import torch\nfrom helpers import update\n"
        "model = torch.nn.Linear(8, 1)\noptimizer = torch.optim.SGD(model.parameters())\n"
        "def finish(optimizer):\n    optimizer.step()\n    optimizer.zero_grad()\n"
        "def train(loader):\n    for step, x in enumerate(loader):\n        loss = model(x).mean()\n"
        "        loss.backward()\n        if (step + 1) % 4 == 0:\n            update(optimizer)\n"
    )
    (tmp_path / "helpers.py").write_text(
        "from torch.nn.functional import mse_loss\nfrom train import finish\n"
        "def update(optimizer):\n    finish(optimizer)\n"
        "def fit(model, loader, optimizer):\n    for step, (x, y) in enumerate(loader):\n"
        "        loss = mse_loss(model(x), y)\n        loss.backward()\n"
        "        if (step + 1) % 4 == 0:\n            update(optimizer)\n"
    )

    def told(*names: str) -> dict[str, list[tuple[str, str]]]:
        shared, targets = (
            Shared(),
            (Target(n, str(tmp_path / n), Settings(tmp_path)) for n in names),
        )
        each = {t.shown: check_bytes(Path(t.file).read_bytes(), t, shared) for t in targets}
        return {name: [(r.code, r.mark.where) for r in c.reports] for name, c in each.items()}

    alone = {**told("train.py"), **told("helpers.py")}
    # The update that drops what is left over stands in the file itself.
    assert alone["train.py"] == [("ACC501", "6:5"), ("ACC102", "11:9")]
    assert told("train.py", "helpers.py") == told("helpers.py", "train.py") == alone


def _lines(run: Run, *paths: str) -> list[str]:
    out = run("check", "--no-cache", *paths).out.splitlines(keepends=True)
    return [line for line in out if ": ACC" in line]


# What a long file holds beside a loop, and what the reduced one leaves out.
_BESIDE = """

def load_{0}(path, rows=None):
    kept = [row for row in rows or [] if row > {0}]
    return sorted(kept)


class Table{0}:
    def show(self, width={0}):
        return "".join(str(width))
"""


@pytest.mark.parametrize("file", ONE_EACH[::2], ids=name_of)
def test_the_reduced_file_tells_what_the_whole_one_does(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = file.read_text(encoding="utf-8") + "".join(map(_BESIDE.format, range(12)))
    whole = found(source, own(file))
    monkeypatch.setattr(pruning, "LONG", 0)
    found.cache_clear()
    assert found(source, own(file)) == whole
    silent = pruning.silent(parsed(source), lines(source))
    assert len(silent) >= 2 * 12


def test_the_fixtures_cover_what_they_must() -> None:
    assert len(ONE_EACH) > 50
    assert all(markers(file.read_text(encoding="utf-8")) for file in ONE_EACH)
    assert codes(LOOP) == Counter({"ACC102": 1})
