"""The terminal tells each verdict with its figures, on any terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import confirmed
import pytest

from accumlint.confirming.reports.terminal_report import table
from accumlint.confirming.reports.text_columns import figure
from accumlint.confirming.result import Confirmation, Control, Regime, Verdict
from accumlint.confirming.symptoms.microbatch_outcomes import ranges
from accumlint.diagnostics.reporting.terminal import Look

PLAIN, ASCII, COLOR = Look(), Look(boxes=False), Look(color=True)

CLEARED = """\
train.py:42:9 ACC402 zero-grad-inside-window  confirmed
Micro-batches 1 to 3 of every window are cleared before the step: the applied
gradient is off by 0.766 of the large batch's, with cosine 0.883.

  4 accumulation steps, 1 rank, equal target counts:
  update  micro-batches  lost  applied  reference  error
  ──────  ─────────────  ────  ───────  ─────────  ─────
       1  1-4            1-3    0.0312      0.117  0.766
       2  5-8            5-7    0.0341      0.109  0.749

  window     Of 8 micro-batches, 1-3, 5-7 are cleared before any step.
  control    The clear was moved in front of the window's first micro-batch. No
             defect shows then.
  fake       `model` is a network of two linear layers, in float64
             `loader` is a list of 8 batches of 6 to 16 targets
             `optimizer` is SGD(lr=0.05)
  also run   4 accumulation steps, 1 rank, differing target counts: 1 update,
             largest error 0.81.
  also seen  The scheduler moves once per update, as it should.

1 confirmed
"""
BESIDE = """\
  update  micro-batches  lost  applied         reference  error
                                 found  fixed             found    fixed
  ──────  ─────────────  ────  ───────  ─────  ─────────  ─────  ───────
       1  1-4            1-3    0.0312  0.117      0.117  0.766  3.1e-16
       2  5-8            5-7    0.0341  0.109      0.109  0.749  2.7e-16
"""
NARROW = """\
  update 1, micro-batches 1-4, lost 1-3, applied
  0.0312 (fixed 0.117), reference 0.117, error
  0.766 (fixed 3.1e-16)
"""
UNDECIDED = '''\
train.py:88:9 ACC201 clip-before-unscale  undecided
The loop did not run: `rollout` is called and nothing is known to stand in for
it.

A set-up file can give what is missing. Fill this one in, and name it with --setup:
--------------------------------------------------------------------------------
"""What accumlint cannot make up for train.py."""


def setup(rank, world, device):
    return dict(
        rollout=...,  # called at line 81
    )
--------------------------------------------------------------------------------

1 undecided
'''
BOTH = (confirmed.CLEARED, confirmed.CLEARED_FIXED)


def text(*confirmations: Confirmation, look: Look = PLAIN, width: int = 80) -> str:
    return "\n".join(table(confirmations, look, width)) + "\n"


def test_a_confirmed_finding_tells_its_figures() -> None:
    assert text(confirmed.CLEARED) == CLEARED


def test_updates_that_were_shown_are_not_shown_again() -> None:
    other = replace(confirmed.CLEARED, code="ACC501", verdict=Verdict.UNDECIDED, control=None)
    told = text(confirmed.CLEARED, other)
    assert told.count("micro-batches  lost  applied") == 1
    assert "  4 accumulation steps, 1 rank, equal target counts: as above.\n" in told


def test_an_undecided_one_tells_why_and_gives_the_setup_file() -> None:
    assert text(replace(confirmed.UNBOUND, fakes=()), look=ASCII) == UNDECIDED


def test_the_same_setup_file_is_told_once() -> None:
    again = replace(confirmed.UNBOUND, line=90)
    shown = text(confirmed.UNBOUND, again, replace(again, file="other.py"))
    assert shown.count("def setup(") == 2
    assert shown.count("The set-up file above is for this one too.") == 1


def test_found_and_fixed_stand_side_by_side() -> None:
    shown = text(*BOTH)
    assert "confirmed, gone in the fixed text" in shown
    assert BESIDE in shown
    assert "Fixed: Every micro-batch is applied once" in shown


def test_a_narrow_terminal_gets_sentences() -> None:
    assert NARROW in text(*BOTH, width=50)


@pytest.mark.parametrize("width", [20, 40, 64, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Except the place with its verdict, which is to be found by its beginning."""
    shown = [one for one in confirmed.ALL if not one.setup]
    for line in table(shown, PLAIN, width):
        assert len(line) <= max(width, 40) or line.startswith("train.py:")


@pytest.mark.parametrize("width", [50, 80, 120])
def test_colours_and_boxes_change_nothing_else(width: int) -> None:
    plain = text(*confirmed.ALL, width=width)
    assert re.sub("\x1b\\[[0-9;]*m", "", text(*confirmed.ALL, look=COLOR, width=width)) == plain
    ascii_only = text(*confirmed.ALL, look=ASCII, width=width)
    assert ascii_only.isascii()
    assert ascii_only == plain.replace("─", "-")


# What is particular to each claim, in the figures of the pass that decides.
TOLD = [
    (confirmed.RAGGED, ["       1  1-4               6-30  0.467-2.33    0.121      0.117  0.289"]),
    (confirmed.DIVERGING, ["spread  all-reduces", "0.574            3"]),
    (confirmed.TRAILING, ["5-6 are cleared before any step; 11-12 are never applied."]),
    (confirmed.COSTLY, ["all-reduces\n", "3.1e-16            4\n"]),
    (
        confirmed.RAISING,
        ["  RuntimeError at line 51: unscale_() has already been called on this one.\n"],
    ),
    (
        confirmed.TOTALLED,
        [
            "`total` is 4.61 at update 2, keeping 24 graph nodes.",
            "The scale after each update is 1024, 1024.",
            "The clipping threshold was set to 0.0586, so that it acts.",
        ],
    ),
    (confirmed.LEAKING, ["again", "1-4       0.22", "1-4 are applied more than once."]),
    (confirmed.UNDIVIDED, ["factor", "0.469      0.117      3       K"]),
    (confirmed.HALVED, ["factor", "0.0586      0.117    0.5    0.51"]),
    (confirmed.OVERFLOWING, ["5-8 are skipped", "nan      0.109      inf"]),
    (confirmed.ADVERSARIAL, ["optimizer", "opt_d", "opt_g"]),
    (confirmed.HARMLESS, ["refuted", "The defect shows then."]),
]


@pytest.mark.parametrize(("one", "told"), TOLD, ids=[one.name for one, _ in TOLD])
def test_each_claim_shows_its_own_figures(one: Confirmation, told: Sequence[str]) -> None:
    shown = text(one, width=200)
    for words in told:
        assert words in shown


@pytest.mark.parametrize("one", [confirmed.COSTLY, confirmed.HARMLESS, confirmed.ADVERSARIAL])
def test_a_right_gradient_has_no_defect_in_its_figures(one: Confirmation) -> None:
    shown = text(one)
    for words in ("lost", "again", "factor", "spread", "weight", "\n  window"):
        assert words not in shown


def test_a_control_that_changes_nothing_says_nothing_of_the_defect() -> None:
    read = "read at 4 updates, the total has 4 different values"
    lines = text(replace(confirmed.CLEARED, control=Control(read, True, 4.0)))
    assert "The defect shows then" not in lines
    assert "Read at 4 updates" in lines


def test_fakes_are_told_once() -> None:
    shown = text(confirmed.CLEARED, confirmed.RAGGED)
    assert shown.count("SGD(lr=0.05)") == 1
    assert re.search("fake +as above\n", shown)


def test_many_updates_are_cut() -> None:
    done = replace(confirmed.PASS, updates=(confirmed.UPDATE,) * 30)
    shown = text(replace(confirmed.HARMLESS, passes=(done,)))
    assert "  and 18 more\n" in shown


SUMMARIES: list[tuple[tuple[Confirmation, ...], str]] = [
    ((), "nothing to confirm"),
    (confirmed.ALL, "10 confirmed, 2 refuted, 1 undecided; 1 of 1 gone in the fixed text"),
    ((confirmed.HARMLESS,), "1 refuted"),
    (
        (confirmed.CLEARED, replace(confirmed.CLEARED, arm="fixed")),
        "1 confirmed; 0 of 1 gone in the fixed text",
    ),
]


@pytest.mark.parametrize(("confirmations", "summary"), SUMMARIES)
def test_the_last_line_counts_verdicts(confirmations: Sequence[Confirmation], summary: str) -> None:
    assert text(*confirmations).splitlines()[-1] == summary


def test_findings_come_in_the_order_of_their_places() -> None:
    assert text(*reversed(confirmed.ALL)) == text(*confirmed.ALL)


def test_nothing_that_a_terminal_obeys_gets_through() -> None:
    evil = "a\x1b]0;title\x07\u202eb\r\x9b2J\n"
    one = replace(
        confirmed.CLEARED,
        file=evil,
        code=evil,
        name=evil,
        reason=evil,
        control=Control(evil, True, 1.0),
        fakes=(evil,),
        also=(evil,),
        setup=evil,
        verdict=Verdict.UNDECIDED,
        passes=(
            replace(
                confirmed.PASS,
                regime=Regime.RAGGED,
                updates=(
                    replace(confirmed.UPDATE, optimizer=evil, factor=evil),
                    replace(confirmed.UPDATE, optimizer="other"),
                ),
                raised=replace(confirmed.RAISED, kind=evil, message=evil),
                totals=(replace(confirmed.TOTAL, name=evil),),
            ),
        ),
    )
    for width in (40, 200):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text(one, width=width))


FIGURES = [
    (0.0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (4, "4"),
    (0.76623, "0.766"),
    (0.00123, "0.00123"),
    (0.00099, "9.9e-04"),
    (3.1e-16, "3.1e-16"),
    (-0.25, "-0.25"),
    (1234.56, "1235"),
    (65536.0, "65536"),
    (1e7, "1.0e+07"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
]


@pytest.mark.parametrize(("value", "shown"), FIGURES)
def test_figures_have_three_digits_that_count(value: float, shown: str) -> None:
    assert figure(value) == shown


RUNS: list[tuple[list[int], str]] = [
    ([], ""),
    ([3], "3"),
    ([1, 2], "1-2"),
    ([4, 2, 1, 4, 7], "1-2, 4, 7"),
]


@pytest.mark.parametrize(("numbers", "shown"), RUNS)
def test_runs_of_numbers_are_drawn_together(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown
