"""The charts and the JSON of what a run measured of its updates: all that was measured, and nothing else."""

from __future__ import annotations

import json

import pytest
from documents import Node, read
from helpers import ROOT
from readers import findings_of

from accumlint.diagnostics.drawing.updates_charts import relative, section
from accumlint.diagnostics.reporting import reporter
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.measured import Measured, Update, Weight
from accumlint.diagnostics.results.report import Checked


def update(number: int = 0, **given: float | None) -> Update:
    norms = {"applied": 4.0, "unclipped": None, "wanted": 1.0, "spread": None} | given
    weights = tuple(Weight(0, at, 8, 0.1 * at, 0.1 * at, 0.1 * at) for at in (1, 3))
    return Update(10 + number, 2, weights=weights, **norms)


def measured(*updates: Update, ranks: int = 1) -> Measured:
    return Measured("torch.optim.sgd.SGD", str(ROOT / "train.py"), ranks, 64, updates)


def charts(one: Measured) -> dict[str, Node]:
    """The pictures of an optimizer by the headings of their figures."""
    figures = read(section(one, "updates")).all("figure")
    found = {f.all("strong")[0].text: f.all("svg")[-1] for f in figures}
    assert all(svg.attributes["role"] == "img" for svg in found.values())
    return found


def curve(chart: Node, kind: str) -> str:
    [path] = [p for p in chart.all("path") if p.attributes.get("class") == f"curve {kind}"]
    return path.attributes["d"]


def test_an_update_that_was_not_measured_interrupts_its_curve_and_is_told_as_unknown() -> None:
    drawn = charts(measured(update(), update(wanted=None), update(wanted=2.0), update()))
    assert set(drawn) == {"Gradient norm", "Weight per target"}
    norms = drawn["Gradient norm"]
    assert (curve(norms, "wanted").count("M"), curve(norms, "wanted").count("L")) == (2, 1)
    assert (curve(norms, "applied").count("M"), curve(norms, "applied").count("L")) == (1, 3)
    assert norms.children[1].text == "applied: 4, 4, 4, 4; wanted: 1, unknown, 2, 1"
    assert {"update", "norm", "1", "4"} <= {text.text for text in norms.all("text")}


@pytest.mark.parametrize(
    ("one", "titles"),
    [
        (measured(), set[str]()),
        (measured(Update(3, 0, None, None, None, None, ())), set[str]()),
        (measured(update(applied=None, wanted=None)), {"Weight per target"}),
        (
            measured(update(spread=0.0), ranks=2),
            {"Gradient norm", "Weight per target", "Difference between ranks"},
        ),
    ],
)
def test_what_was_not_measured_has_no_chart(one: Measured, titles: set[str]) -> None:
    assert set(charts(one)) == titles


def test_a_curve_that_is_four_times_as_high_is_drawn_four_times_as_high() -> None:
    norms = charts(measured(update()))["Gradient norm"]
    heights = {
        kind: float(curve(norms, kind).removeprefix("M").split(" ")[1])
        for kind in ("applied", "wanted")
    }
    [base] = [p for p in norms.all("path") if p.attributes.get("class") == "base"]
    floor = float(base.attributes["d"].split(" ")[1].partition("H")[0])
    assert floor - heights["applied"] == pytest.approx(4 * (floor - heights["wanted"]), rel=0.01)


def test_weights_are_relative_to_the_mean_over_the_targets_of_the_update() -> None:
    assert relative(update().weights) == [pytest.approx((0.5, 0.5)), pytest.approx((1.5, 1.5))]
    assert relative(()) == []


def test_many_updates_are_told_as_a_range_and_stay_small() -> None:
    many = measured(*(update(number, applied=1.0 + number) for number in range(1000)))
    assert (
        charts(many)["Gradient norm"]
        .children[1]
        .text.startswith("applied: from 1 to 1e+03 in 1000 updates")
    )
    assert (
        len("".join(p.attributes.get("d", "") for p in charts(many)["Gradient norm"].all("path")))
        < 60_000
    )


def test_json_has_the_figures_where_they_are_asked_for() -> None:
    results = [Checked("train.py", measured=(measured(update(), ranks=2),))]
    texts = {
        figures: "\n".join(reporter("json")(results, Look(figures=figures)))
        for figures in (False, True)
    }
    assert json.loads(texts[False]) == []
    whole = findings_of(texts[True])
    [line] = reporter("json-lines")(results, Look(figures=True))
    assert [json.loads(line)["measured"]] == whole["measured"]
    [one] = whole["measured"]
    assert one["updates"][0] | {"weights": []} == {
        "row": 10, "micro_batches": 2, "applied_norm": 4.0, "unclipped_norm": None, "wanted_norm": 1.0,
        "rank_spread": None, "weights": [],
    }  # fmt: skip
