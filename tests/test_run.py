"""`accumlint run` finds the defects of scripts that it watches, with their factors, and nothing in right ones."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from documents import read
from helpers import ROOT

from accumlint.common.observed import Observed
from accumlint.runtime import judging, records, reports
from accumlint.runtime.answers import Answer, number

ZOO = ROOT / "fixtures" / "run"
ZOO_RUNNER = ROOT / "tests" / "zoo.py"
_MARKER = re.compile(r"  # error: ([A-Z0-9, ]+)$")
# How many times too large the gradient is.
FACTORS = {
    "plain/bad_undivided": 4,
    "plain/bad_compiled_undivided": 4,
    "plain/bad_own_loss_undivided": 4,
    "plain/bad_divided_twice": 1 / 4,
    "plain/bad_tokens_gathered_undivided": 4,
    "plain/bad_other_divisor": 1 / 2,
    "plain/bad_summed": 8,
    "scaler/bad_undivided": 4,
    "ddp/bad_undivided": 4,
    "ddp/bad_world_factor": 2,
    "ddp/bad_loss_reduced": 1 / 2,
    "ddp/bad_gradient_summed": 2,
    "ddp/bad_tokens_not_times_world": 1 / 2,
    "fsdp/bad_undivided": 4,
    "accelerate/bad_bypassed": 4,
    "accelerate/bad_undivided_two_ranks": 4,
    "accelerate/bad_divided_twice": 1 / 4,
    "transformers/bad_num_items_ignored": 4,
    "trl/bad_sft_mean": 4,
    "lightning/bad_divided_by_hand": 1 / 4,
    "lightning/bad_manual_undivided": 4,
    "fabric/bad_undivided": 4,
    "deepspeed/bad_step_at_boundary": 4,
    "deepspeed/bad_divided_twice": 1 / 4,
    "deepspeed/bad_divided_twice_stage2_two_ranks": 1 / 4,
    "deepspeed/bad_divided_twice_stage3_two_ranks": 1 / 4,
}
LIGHTNING = ["lightning", "fabric"] if find_spec("lightning") else []
_OF_SIZE = ("ACC102", "ACC103", "ACC104", "ACC105", "ACC107", "ACC307", "ACC308", "ACC6")


def expected(script: Path) -> set[tuple[int, str]]:
    """Line and code of each marker."""
    rows = enumerate(script.read_text().splitlines(), 1)
    found = ((line, match) for line, row in rows if (match := _MARKER.search(row)))
    return {(line, code) for line, match in found for code in match[1].split(", ")}


def ranks(script: Path) -> int:
    return 2 if script.parent.name in ("ddp", "fsdp") or "two_ranks" in script.stem else 1


def wrong(folder: Path) -> list[tuple[str, Answer]]:
    """The codes and answers of a run that are reported without being asked for."""
    by_kind = reports.rules()
    judged = judging.judge(records.read(folder))
    return [(by_kind[a.observed].code, a) for a in judged.wrong if a.confidence != "possible"]


def faults(script: Path, folder: Path) -> list[str]:
    """What a run says that it should not say, and the other way round."""
    answers = wrong(folder)
    found = {(answer.place[1], code) for code, answer in answers}
    told = [f"{answer.place}: {code} {answer.message}" for code, answer in answers]
    name = f"{script.parent.name}/{script.stem}"
    sizes = [answer.factor for code, answer in answers if code.startswith(_OF_SIZE)]
    factor = FACTORS.get(name)
    if factor is not None and not any(abs(size / factor - 1) < 0.02 for size in sizes):
        told.append(f"factor {factor} is not among {sizes}")
        return [name, *told]
    return [] if found == expected(script) else [name, *told]


def watched(scripts: list[Path], folder: Path) -> list[list[str]]:
    """Runs scripts in processes forked from one that has imported torch; gives the faults of each that has some."""
    order = [(str(s), str(folder / s.parent.name / s.stem), ranks(s)) for s in scripts]
    subprocess.run(
        [sys.executable, ZOO_RUNNER], input=json.dumps(order), text=True, check=True, timeout=550
    )
    found = [faults(s, Path(made)) for s, (_, made, _) in zip(scripts, order, strict=True)]
    return [fault for fault in found if fault]


# Each starts one process that imports torch, and both take about as long.
@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize(
    "groups", [["plain", *LIGHTNING], ["scaler", "ddp", "fsdp", "accelerate"]], ids=" ".join
)
@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=pytest.mark.whole)], ids=["every eighth", "all"]
)
def test_defects_are_found_with_their_factor_and_right_scripts_stay_silent(
    groups: list[str], every: int, tmp_path: Path
) -> None:
    found = [sorted((ZOO / group).glob("*.py"))[::every] for group in groups]
    uneven = ZOO / "plain" / "bad_tokens_mean.py"
    scripts = [*chain(*found), *([uneven] if "plain" in groups and uneven not in found[0] else [])]
    assert {script.parent.name for script in scripts} == set(groups)
    assert watched(scripts, tmp_path) == []
    if "plain" in groups:
        assert_unevenness(tmp_path / "plain" / uneven.stem)


@pytest.mark.torch
@pytest.mark.gpu
@pytest.mark.long
def test_scripts_on_a_gpu_are_watched(tmp_path: Path) -> None:
    if not import_module("torch").cuda.is_available():
        pytest.skip("torch can use no GPU")
    assert watched(sorted((ZOO / "cuda").glob("*.py")), tmp_path) == []


def assert_unevenness(folder: Path) -> None:
    """The unevenness of targets that a run has found is that of their counts."""
    made = runpy.run_path(str(ZOO / "plain" / f"{folder.name}.py"))
    counts = [int((labels != -100).sum()) for _, labels in made["make_loader"]()]
    windows = [counts[at : at + 4] for at in range(0, len(counts), 4)]
    [(code, answer)] = wrong(folder)
    assert code == "ACC101"
    assert answer.factor == pytest.approx(max(max(w) / min(w) for w in windows), rel=0.02)


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize("group", ["transformers", "trl", "deepspeed"])
def test_frameworks_are_watched_as_they_are(group: str, tmp_path: Path, run: Run) -> None:
    pytest.importorskip(group)
    for script in sorted((ZOO / group).glob("*.py")):
        out = tmp_path / f"{script.stem}.json"
        many = [f"--nproc-per-node={ranks(script)}"]
        # DeepSpeed wants a launcher even for one rank.
        launcher = [sys.executable, "-m", "torch.distributed.run", *many]
        start, many = (launcher, []) if group == "deepspeed" else ([], many)
        run("run", *many, "--no-check", f"--output=json={out}", "--", *start, str(script))
        found = json.loads(out.read_text())
        assert {(f["location"]["row"], f["code"]) for f in found} == expected(script), script.stem
        factor = FACTORS.get(f"{group}/{script.stem}")
        if factor is not None:
            sizes = " ".join(f["expected"] for f in found)
            said = {4: "add up to 4 ", 1 / 4: "add up to 1/4 "}[factor]
            assert said in sizes, script.stem


def test_each_observation_is_one_rule_s() -> None:
    assert set(reports.rules()) == set(Observed)


@pytest.mark.torch
def test_a_finding_carries_the_line_its_figures_and_what_check_says(
    tmp_path: Path, run: Run
) -> None:
    script = tmp_path / "train.py"
    script.write_text((ZOO / "plain" / "bad_undivided.py").read_text())
    page = tmp_path / "page.html"
    ran = run("run", "--figures", "--output", "json", "--output", f"html={page}", "--", "train.py")
    assert ran.code == 1, ran.err
    told = json.loads(ran.out)
    [finding] = told["findings"]
    assert (finding["code"], finding["confidence"]) == ("ACC102", "certain")
    assert "applies 1 g1 + 1 g2 + 1 g3 + 1 g4" in finding["applied"]
    assert "the large batch is 1/4 g1" in finding["expected"]
    assert "control" in finding["expected"]
    assert [mark["message"] for mark in finding["related"]] == [reports.BOTH]
    assert len(finding["window"]) == 5
    assert "7 updates of 4 micro-batches" in ran.err
    [measured] = told["measured"]
    assert (measured["ranks"], len(measured["updates"])) == (1, 7)
    for update in measured["updates"]:
        assert update["applied_norm"] == pytest.approx(4 * update["wanted_norm"], rel=1e-5)
        assert [w["weight"] for w in update["weights"]] == [pytest.approx(1 / 8)] * 4
    assert {"Gradient norm", "Weight per target"} == {
        strong.text for strong in read(page.read_text()).all("strong")
    }


TO_THE_END = """\
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(ROWS, 5), torch.randint(0, 3, (ROWS,)))
loader = DataLoader(data, batch_size=8)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        (cross_entropy(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.torch
def test_whole_windows_at_the_end_of_an_epoch_refute_a_partial_one(
    tmp_path: Path, run: Run
) -> None:
    (tmp_path / "whole.py").write_text(TO_THE_END.replace("ROWS", "64"))
    whole = run("run", "--", "whole.py")
    assert whole.code == 0
    assert "refuted: whole.py:13: ACC502 of `check`: no window is partial, of 6" in whole.err
    (tmp_path / "partial.py").write_text(TO_THE_END.replace("ROWS", "80"))
    partial = run("run", "--", "partial.py")
    assert "ACC502" in partial.out
    assert "the partial window of 2 micro-batches is divided by 4" in partial.out


def test_a_number_is_a_fraction_where_people_write_one() -> None:
    assert [number(x) for x in (4, 1 / 4, 3 / 4, 1 / 64, 235 / 59)] == [
        *("4", "1/4", "3/4", "1/64", "3.98")
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "absent.py"], "absent.py: there is no such file"),
        (["--", "no-such-command", "x"], "neither a Python script nor a command"),
        ([], "run wants a script"),
        pytest.param(
            ["--", "fails.py"],
            "failed with exit code 3 before torch went backward",
            marks=pytest.mark.torch,
        ),
        pytest.param(
            ["--", "idle.py"], "ended before torch went backward", marks=pytest.mark.torch
        ),
    ],
)
def test_what_cannot_be_watched_is_told_in_one_line(
    tmp_path: Path, run: Run, arguments: list[str], said: str
) -> None:
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "idle.py").write_text("print('nothing to train')\n")
    ran = run("run", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err.splitlines()[-1]


LINES = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_


def train(model, optimizer, divisor, updates=6, size=4, seen=lambda: None):
    for step in range(size * updates):
        loss = cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
        (loss / divisor).backward()
        seen()
        if (step + 1) % size == 0:
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """The loop of a file, whose functions are bound before anything is watched."""
    (tmp_path / "train_watched.py").write_text(LINES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield import_module("train_watched").train
    del sys.modules["train_watched"]


@pytest.mark.torch
def test_a_watch_sees_the_updates_of_its_own_process_and_leaves_torch_as_it_was(
    tmp_path: Path, train: Callable[..., None]
) -> None:
    import torch

    import accumlint

    file = tmp_path / "train_watched.py"
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.autograd.backward, torch.nn.functional.cross_entropy
    told: list[str] = []
    with accumlint.watch(model, optimizer, log=told.append) as right:
        train(model, optimizer, 4)
    assert right.findings == ()
    assert told[0] == "SGD: 6 updates of 4 micro-batches on 1 rank"
    with pytest.raises(Exception, match="ACC102") as raised:  # noqa: SIM117
        with accumlint.watch(model, optimizer, strict=True, log=told.append):
            train(model, optimizer, 1, updates=8)
    assert str(raised.value).startswith(f"{file}:10: ACC102 loss-not-divided")
    assert (torch.autograd.backward, torch.nn.functional.cross_entropy) == before


@pytest.mark.torch
def test_a_watch_looks_at_one_window_of_many_and_says_once_what_is_new(
    tmp_path: Path, train: Callable[..., None]
) -> None:
    """Between the windows, torch is as it was but for the hooks that follow steps."""
    import torch

    import accumlint

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bare = torch.autograd.backward
    watched: list[bool] = []
    told: list[str] = []

    def see() -> None:
        watched.append(torch.autograd.backward is not bare)

    with accumlint.watch(model, optimizer, updates=2, every=5, log=told.append) as watching:
        train(model, optimizer, 4, updates=12, seen=see)
        assert watching.findings == ()
        assert not model.weight._backward_hooks
        # A partial window, as at the end of an epoch, is not judged; one of these is watched.
        train(model, optimizer, 4, updates=5, size=2)
        assert watching.findings == ()
        train(model, optimizer, 1, updates=15)
        assert [f.partition(": the gradient")[0] for f in watching.findings] == [
            f"{tmp_path / 'train_watched.py'}:10: ACC102 loss-not-divided: "
            "loss is never divided by the 4 micro-batches"
        ]
    by_update = [any(watched[at : at + 4]) for at in range(0, len(watched), 4)]
    assert [at + 1 for at, seen in enumerate(by_update) if seen] == [1, 2, 7, 12]
    assert told[1:] == [told[1], *watching.findings]
    assert torch.autograd.backward is bare


@pytest.mark.torch
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": 0}, "every wants a whole number of at least 1, not 0"),
        ({"every": 2.5}, "every wants a whole number of at least 1, not 2.5"),
        ({"every": True}, "every wants a whole number of at least 1, not True"),
        ({"updates": -1}, "updates wants a whole number of at least 1, not -1"),
    ],
)
def test_what_a_watch_cannot_take_is_told_in_one_line(given: dict[str, Any], said: str) -> None:
    import accumlint

    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        accumlint.watch(**given)
    assert str(raised.value) == said


@pytest.mark.torch
def test_a_watch_that_fails_tells_it_and_lets_the_training_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import accumlint
    from accumlint.runtime import inprocess

    def broken(*_: object) -> None:
        raise ValueError("out of order")

    monkeypatch.setattr(inprocess, "start", broken)
    told: list[str] = []
    with accumlint.watch(strict=True, log=told.append):
        pass
    assert told == ["cannot watch any more: ValueError: out of order"]


@pytest.mark.torch
def test_a_log_that_fails_stops_the_watch_and_not_the_training(
    train: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    import accumlint

    def full(_: str) -> None:
        raise OSError("disk full")

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with accumlint.watch(every=2, log=full):
        train(model, optimizer, 4, updates=12)
    assert capsys.readouterr().err == "accumlint: cannot watch any more: OSError: disk full\n"
