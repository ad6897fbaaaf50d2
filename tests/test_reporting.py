"""Each output format shows a finding in the right place, on any terminal."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from accumlint.common.place import Place
from accumlint.common.problem import Kind, Problem
from accumlint.diagnostics.reporting import reporter
from accumlint.diagnostics.reporting.code_frame import frame
from accumlint.diagnostics.reporting.terminal import Look, printable
from accumlint.diagnostics.results.report import Backward, Cell, Checked, Mark, Report

PLAIN, ASCII, COLOR = Look(), Look(boxes=False), Look(color=True)


def report(line: int = 3, severity: str = "error") -> Report:
    return Report(
        shown="train.py",
        file="/src/train.py",
        code="ACC102",
        name="loss-not-divided",
        message="`loss` is summed and never divided",
        severity=severity,
        confidence="likely",
        mark=Mark(Place(line, 5, line, 20), "    loss.backward()"),
        related=(Mark(Place(1, 1, 1, 2), "k = 4", "the accumulation steps"),),
        condition="when args.amp is true",
        applied="the step applies g1 + g2",
        expected="the large batch is 1/2 g1 + 1/2 g2",
        timeline=(
            Mark(Place(3, 5, 3, 20), "    loss.backward()", "micro-batch 1: backward adds g1"),
            Mark(Place(14, 5, 14, 21), "    optimizer.step()", "step applies g1"),
        ),
    )


FULL = """\
ACC102 loss-not-divided (error, likely)
`loss` is summed and never divided
  ╭─ train.py:3:5
  │
1 │ k = 4
  │ - the accumulation steps
  ┆
3 │     loss.backward()
  │     ^^^^^^^^^^^^^^^
  │
  │  3  micro-batch 1: backward adds g1
  │ 14  step applies g1
  │
  │ the step applies g1 + g2
  │ the large batch is 1/2 g1 + 1/2 g2
  │
  │ This happens when args.amp is true.
  ╰─ accumlint rule ACC102

1 finding (1 error) in 1 file
"""


def lines(name: str, look: Look, *results: Checked) -> list[str]:
    return list(reporter(name)(results, look))


def test_full_tells_the_whole_story() -> None:
    result = Checked("train.py", (report(),))
    assert lines("full", PLAIN, result) == FULL.splitlines()


def test_colours_and_boxes_change_nothing_else() -> None:
    result = Checked("train.py", (report(),))
    bare = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in lines("full", COLOR, result)]
    assert bare == FULL.splitlines()
    ascii_only = "\n".join(lines("full", ASCII, result))
    assert ascii_only.isascii()
    assert "--> train.py:3:5" in ascii_only


def test_concise_is_one_line_with_the_condition() -> None:
    assert lines("concise", PLAIN, Checked("train.py", (report(),)))[0] == (
        "train.py:3:5: ACC102 [error] `loss` is summed and never divided (when args.amp is true)"
    )


def in_notebook() -> Report:
    here = report()
    mark = replace(here.mark, cell=Cell(2, "a1"), raw=Place(40, 11, 40, 26))
    related = replace(here.related[0], cell=Cell(1, "a0"), raw=Place(17, 7, 17, 8))
    return replace(here, shown="n.ipynb", mark=mark, related=(related,))


def test_a_notebook_s_findings_name_their_cell() -> None:
    result = Checked("n.ipynb", (in_notebook(),))
    assert lines("concise", PLAIN, result)[0].startswith("n.ipynb:cell 2:3:5: ACC102 ")
    assert "  ╭─ n.ipynb:cell 2:3:5" in lines("full", PLAIN, result)
    (finding,) = json.loads("\n".join(lines("json", PLAIN, result)))
    assert (finding["cell"], finding["location"]["row"]) == (2, 3)
    assert (finding["related"][0]["cell"], finding["related"][0]["location"]["row"]) == (1, 1)
    assert [mark.in_file.line for mark in (in_notebook().mark, report().mark)] == [40, 3]


BROKEN = Checked("b.py", problems=(Problem("b.py", "syntax error"),))
SLOW = Checked("c.py", problems=(Problem("c.py", "the time ran out", Kind.WARNING),))


def backward(line: int, state: str, *reasons: str) -> Backward:
    return Backward("a.py", "/src/a.py", Mark(Place(line, 1, line, 16), ""), state, reasons)


READ = Checked("a.py", backwards=(backward(4, "whole"),))
PARTLY = Checked("a.py", backwards=(backward(4, "whole"), backward(7, "partly", "one", "two")))
SUMMARIES = [
    ((), ["No file was checked"]),
    ((Checked("a.py"),), ["All clear: no finding in 1 file"]),
    ((READ,), ["All clear: no finding in 1 file"]),
    ((Checked("a.py"), SLOW), ["No finding in 2 files"]),
    ((Checked("a.py"), BROKEN), ["No finding in 1 file", "1 file could not be checked"]),
    (
        (Checked("train.py", (report(), report(9, "info"), report(7, "info"))), BROKEN),
        ["3 findings (1 error, 2 info) in 1 file", "1 file could not be checked"],
    ),
    (
        (PARTLY,),
        [
            "No finding in 1 file",
            "2 backward calls read: 1 whole, 1 partly",
            "a.py:7: read partly: one; two",
        ],
    ),
    (
        (Checked("a.py", backwards=tuple(backward(n, "not", "why") for n in range(1, 8))),),
        [
            "No finding in 1 file",
            "7 backward calls read: 7 not",
            *(f"a.py:{n}: not read: why" for n in range(1, 6)),
            "2 more: run with --coverage to list all",
        ],
    ),
]


@pytest.mark.parametrize(("results", "expected"), SUMMARIES)
def test_the_last_lines_sum_up(results: tuple[Checked, ...], expected: list[str]) -> None:
    findings = sum(len(result.reports) for result in results)
    assert lines("concise", PLAIN, *results)[findings:] == expected


@pytest.mark.parametrize("name", ["concise", "full", "grouped", "github", "statistics"])
def test_with_coverage_every_backward_call_is_listed(name: str) -> None:
    told = [
        "2 backward calls read: 1 whole, 1 partly",
        "a.py:4: read whole",
        "a.py:7: read partly: one; two",
    ]
    assert lines(name, Look(coverage=True), PARTLY)[-3:] == told
    # Who wants findings only, and coverage, gets the list without the sums.
    assert lines(name, Look(coverage=True, quiet=True), PARTLY) == told[1:]


def test_pages_list_what_was_not_read() -> None:
    page = "\n".join(lines("html", PLAIN, PARTLY))
    assert "a.py:7" in page
    assert "a.py:4" not in page
    assert "a.py:4" in "\n".join(lines("html", Look(coverage=True), PARTLY))
    assert "a.py\\:7\\: read partly\\: one; two" in "\n".join(lines("markdown", PLAIN, PARTLY))


# Source line, columns of the mark, and the line with what stands under it.
FRAMES = [
    ("loss.backward()", 1, 5, "loss.backward()", "^^^^"),
    ("\tloss.backward()", 2, 6, "    loss.backward()", "    ^^^^"),
    ("a\tb", 3, 4, "a   b", "    ^"),
    ("größe = 梯度 + x", 14, 15, "größe = 梯度 + x", "               ^"),
    ("s = '\x1b[31m'; x", 14, 15, r"s = '\x1b[31m'; x", "                ^"),
    ("x", 1, 1, "x", "^"),
    ("x" * 300, 1, 3, "x" * 160, "^^"),
    ("a" * 200 + "b" * 200, 201, 203, "a" * 80 + "b" * 80, " " * 80 + "^^"),
]


@pytest.mark.parametrize(("source", "start", "end", "text", "under"), FRAMES)
def test_the_caret_stands_under_its_place(
    source: str, start: int, end: int, text: str, under: str
) -> None:
    shown = list(frame([Mark(Place(7, start, 7, end), source)], 1, PLAIN))
    assert shown == ["  │", f"7 │ {text}", f"  │ {under}"]


def test_a_place_of_several_lines_is_underlined_to_the_end_of_its_first() -> None:
    mark = Mark(Place(7, 5, 9, 2), "    clip_grad_norm_(  ")
    assert list(frame([mark], 1, PLAIN))[2] == "  │     ^^^^^^^^^^^^^^^^"


def test_marks_on_one_line_share_it() -> None:
    marks = [
        Mark(Place(2, 5, 2, 6), "x = y", ""),
        Mark(Place(2, 1, 2, 2), "x = y", "set here"),
        Mark(Place(3, 1, 3, 2), "z", "then"),
    ]
    assert list(frame(marks, 1, ASCII)) == [
        "  |",
        "2 | x = y",
        "  |     ^",
        "  | - set here",
        "3 | z",
        "  | - then",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain größe 梯度", "plain größe 梯度"),
        ("\x1b[31m", r"\x1b[31m"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x9b\x7f", r"\x9b\x7f"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
