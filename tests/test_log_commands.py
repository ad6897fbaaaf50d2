"""What stands in logs and summaries of GitHub and Azure is read back as it was reported."""

from __future__ import annotations

import pytest
from readers import (
    annotated,
    issues,
    table_rows,
)
from reported import (
    BROKEN,
    MANY,
    checked,
    report,
    told,
)

from accumlint.diagnostics.reporting.terminal import printable


def test_a_github_annotation_is_read_back() -> None:
    ((level, values, message),) = annotated(told("github", *MANY))
    assert level == "warning"
    assert values == {
        "file": "lib/train.py",
        "line": "3",
        "endLine": "3",
        "col": "5",
        "endColumn": "21",
        "title": "ACC102 loss-not-divided",
    }
    assert message.split("\n") == [report().headline, *report().gradients]


def test_github_gets_its_ten_surest_annotations_and_the_rest_as_lines() -> None:
    likely = [checked(report(f"b{n:02}.py", "error", "likely")) for n in range(12)]
    certain = [checked(report(f"c{n:02}.py", "error")) for n in range(3)]
    text = told("github", *likely, *certain, checked(report("i.py", "info")))
    found = list(annotated(text))
    files = [values["file"] for level, values, _ in found if level == "error"]
    assert files == ["c00.py", "c01.py", "c02.py", *(f"b{n:02}.py" for n in range(7))]
    assert [level for level, _, _ in found if level != "error"] == ["notice"]
    assert found[9][2].endswith("\n5 more errors in the log and in the summary of the run")
    rest = [line for line in text.split("\n") if line.startswith("/src/b")]
    assert [line.split(":")[0] for line in rest] == [f"/src/b{n:02}.py" for n in range(7, 12)]


@pytest.mark.parametrize(
    "file", ["lib/train.py", "a|b`c<d>&.py", "*a* _b_ [c](d) \\.py", "a\nb.py"]
)
def test_the_summary_of_the_run_has_a_row_for_each_finding(file: str) -> None:
    (row,) = table_rows(told("markdown", checked(report(file)), BROKEN))
    told_of = ("<code>losses[i](x)</code> is summed, 100%0A of it", *report().gradients)
    assert row[:3] == ["warning", "ACC102 loss-not-divided", f"<code>{printable(file)}:3:5</code>"]
    assert row[3].replace(f" ({report().condition})", "") == "<br>".join(told_of)


def test_a_summary_stays_below_what_github_takes() -> None:
    text = told("markdown", checked(*[report()] * 5000))
    assert len(text.encode()) < 1024 * 1024
    assert text.split("\n")[-1].endswith("which this page cannot hold")


def test_an_azure_issue_is_read_back() -> None:
    ((values, message),) = issues(told("azure", *MANY))
    assert values == {
        "type": "warning",
        "sourcepath": "lib/train.py",
        "linenumber": "3",
        "columnnumber": "5",
        "code": "ACC102",
    }
    assert message == report().headline
