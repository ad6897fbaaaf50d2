"""The page of a confirmation tells what was measured, and obeys nothing that is written in it."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import confirmed
import pytest
from documents import everything, read

from accumlint.confirming.reports.html_report import page
from accumlint.confirming.reports.sentences import besides
from accumlint.confirming.result import Confirmation, Control, Moment
from accumlint.confirming.symptoms.microbatch_outcomes import outcome_sentence, outcomes, replay

SOURCE = "\n".join(f"    line_{number} = None" for number in range(1, 100))
WHOLE = page(confirmed.ALL, {"train.py": SOURCE})
BOTH = page((confirmed.CLEARED, confirmed.CLEARED_FIXED), {"train.py": SOURCE})


def test_behind_every_picture_there_are_its_figures() -> None:
    for article in read(WHOLE).all("article"):
        captions = [node.text for node in article.all("caption")]
        titles = [node.children[0].text for node in article.all("svg")]
        if any(title.startswith("Timeline") for title in titles):
            assert any(caption.startswith("What was called in each") for caption in captions)
        if any(title.startswith(("Gradient", "Applied", "Largest")) for title in titles):
            assert "All figures of each update" in captions
        if any(title.startswith("Weight") for title in titles):
            assert "Targets of each micro-batch and their weight" in captions


def test_the_source_line_is_shown_between_its_neighbours() -> None:
    (source,) = (n for n in read(BOTH).all("pre") if n.attributes.get("class") == "source")
    rows = source.children[0].children
    assert [row.attributes["class"] for row in rows] == ["near"] * 2 + ["flagged"] + ["near"] * 2
    assert "line_42 = None" in rows[2].text


@pytest.mark.parametrize("sources", [{}, {"train.py": "one line\n"}, {"other.py": SOURCE}])
def test_without_the_source_there_is_no_line(sources: dict[str, str]) -> None:
    assert 'class="source"' not in page([confirmed.CLEARED], sources)


def test_what_nothing_kept_the_runs_from_is_told() -> None:
    title = "Not protected on this machine"
    told = page([confirmed.CLEARED], None, ["network: all of it"])
    assert f"<summary>{title}</summary><ul><li>network: all of it</li></ul>" in told
    assert title not in WHOLE


def test_both_arms_are_drawn_on_the_same_scale() -> None:
    titles = [node.children[0].text for node in read(BOTH).all("svg")]
    assert titles[: len(titles) // 2] == titles[len(titles) // 2 :]
    assert [node.text for node in read(BOTH).all("h3")] == ["As found", "In the fixed text"]
    outlines = [n for n in read(BOTH).all("rect") if n.attributes.get("class") == "reference"]
    heights = [node.attributes["height"] for node in outlines]
    assert heights[:2] == heights[2:]


# What became of micro-batches, by the moments of a pass.
STORIES = [
    (confirmed.CLEARED, "Of 8 micro-batches, 1-3, 5-7 are cleared before any step."),
    (confirmed.CLEARED_FIXED, ""),
    (
        confirmed.TRAILING,
        "Of 12 micro-batches, 5-6 are cleared before any step; 11-12 are never applied.",
    ),
    (confirmed.LEAKING, "Of 8 micro-batches, 1-4 are applied more than once."),
    (
        confirmed.OVERFLOWING,
        "Of 12 micro-batches, 5-8 are skipped, since their gradient is not finite.",
    ),
    (confirmed.RAISING, ""),
    (confirmed.ADVERSARIAL, ""),
    (confirmed.RAGGED, ""),
]


@pytest.mark.parametrize(("one", "told"), STORIES, ids=[one.name for one, _ in STORIES])
def test_the_timeline_tells_which_micro_batches_got_lost(one: Confirmation, told: str) -> None:
    assert outcome_sentence(one.passes[0]) == told
    drawn = page([one])
    lost = sum(fate.name in ("LOST", "LEFT") for fate in outcomes(one.passes[0]).values())
    assert drawn.count('class="strike"') == lost
    assert told in html.unescape(drawn)


# Moments that do not explain the measured gradients.
UNSEEN = [
    ("clears that left no trace", confirmed.CLEARED, "clear"),
    ("clears of a right loop that left none", confirmed.CLEARED_FIXED, "clear"),
    ("steps that left none", confirmed.CLEARED, "step"),
]


@pytest.mark.parametrize(
    ("one", "kind"), [row[1:] for row in UNSEEN], ids=[row[0] for row in UNSEEN]
)
def test_what_the_moments_do_not_explain_is_not_told(one: Confirmation, kind: str) -> None:
    (done, *_) = one.passes
    blind = replace(done, moments=tuple(m for m in done.moments if m.kind != kind))
    assert replay(done) is not None
    assert replay(blind) is None
    assert outcome_sentence(blind) == ""


EVIL = "</style></title><script>alert(1)</script><b onclick='x'>&\"\x1b[2J\u202e\0]]>--><!--"


def test_nothing_written_in_it_becomes_part_of_it() -> None:
    done = replace(
        confirmed.RAGGED.passes[0],
        updates=(
            replace(confirmed.UPDATE, optimizer=EVIL, factor=EVIL, scale=4.0, error=3.0),
            replace(confirmed.SECOND, optimizer="other"),
        ),
        raised=replace(confirmed.RAISED, kind=EVIL, message=EVIL),
        moments=tuple(replace(m, kind=EVIL) for m in confirmed.RAGGED.passes[0].moments),
        totals=(replace(confirmed.TOTAL, name=EVIL),),
    )
    evil = replace(
        confirmed.RAGGED,
        file=EVIL,
        code=EVIL,
        name=EVIL,
        claim=EVIL,
        message=EVIL,
        reason=EVIL,
        measured={EVIL: EVIL},
        control=Control(EVIL, True, 1.0),
        fakes=(EVIL,),
        also=(EVIL,),
        setup=EVIL,
        passes=(done,),
    )
    written = page([evil, replace(evil, arm="fixed")], {EVIL: f"{EVIL}\n" * 99})
    plain = page([confirmed.CLEARED], {"train.py": SOURCE})
    assert {n.name for n in everything(written)} <= {n.name for n in everything(plain)} | {"h3"}
    assert written.count("&lt;script&gt;") > 20
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", written)


def test_a_long_pass_says_that_it_is_cut() -> None:
    updates = tuple(
        replace(confirmed.UPDATE, number=n, microbatches=tuple(range(4 * n - 3, 4 * n + 1)))
        for n in range(1, 31)
    )
    called = tuple(
        Moment(kind, 4 * u.number - 3 + i, 7)
        for u in updates
        for i in range(4)
        for kind in (("backward",) if i < 3 else ("backward", "step", "clear"))
    )
    done = replace(confirmed.PASS, updates=updates, moments=called)
    text = read(page([replace(confirmed.HARMLESS, passes=(done,))])).text
    assert "The first 48 of 120 are drawn." in text
    assert "The first 12 are drawn." in text


def test_nothing_to_confirm_is_a_page_too() -> None:
    assert "Nothing to confirm." in read(page([])).text


def test_the_page_says_how_it_was_made() -> None:
    made = "accumlint confirm train.py (accumlint 0.1.0, torch 2.13.0, Python 3.11.7, on the CPU)"
    assert made in read(page([confirmed.CLEARED], made=made)).text


def test_the_setup_file_is_given_as_it_is() -> None:
    setup = "def setup():\n\treturn dict(\n        a=1 < 2,\n    )"
    (pre,) = read(page([replace(confirmed.UNBOUND, setup=setup)])).all("pre")
    assert pre.children[0].words == [setup]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, None),
        ({"applied": float("nan"), "error": float("nan")}, "not finite at update 1,"),
        ({"reference": 0.0, "error": float("nan")}, "gradient is zero at update 1,"),
        (
            {"reference": 1e-17, "error": 1e16},
            "is 1e+16 because the large batch's gradient is only",
        ),
        ({"applied": 1e15, "error": 1e16}, "update 1 applies is 1e+15 long"),
    ],
)
def test_a_figure_that_is_none_is_told(changed: dict[str, float], told: str | None) -> None:
    done = replace(confirmed.PASS, updates=(replace(confirmed.UPDATE, **changed),))
    said = [line for line in besides(done) if line not in set(besides(confirmed.PASS))]
    assert len(said) == (told is not None)
    assert told is None or told in said[0].replace("1.0e", "1e")
