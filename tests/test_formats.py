"""Each format is understood by the tools that read it, whatever files and sources are called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP
from readers import (
    Suite,
    annotated,
    findings_of,
    issues,
    junit_suites,
    rdjson_diagnostics,
    sarif_run,
)
from reported import (
    BY_SETTINGS,
    HELD,
    KNOWN,
    LOOK,
    MANY,
    UNTRACED,
    checked,
    report,
    told,
)

from accumlint.common.place import Place
from accumlint.common.problem import Problem
from accumlint.config import setting_keys
from accumlint.diagnostics.reporting import reporter, schema
from accumlint.diagnostics.reporting.paths import relative, repository
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import (
    Cell,
    Checked,
    Edit,
    Fix,
    Mark,
    Report,
)
from accumlint.registry import packs


def test_every_format_can_be_asked_for() -> None:
    for name in setting_keys.FORMATS:
        assert callable(reporter(name))
        assert callable(reporter(name, statistics=True))


# SARIF


def sarif_results(*results: Checked, look: Look = LOOK) -> list[dict[str, Any]]:
    return sarif_run(told("sarif", *results, look=look))["results"]


def test_sarif_has_what_code_scanning_asks_for() -> None:
    run = sarif_run(told("sarif", *MANY))
    (rule,) = run["tool"]["driver"]["rules"]
    (result,) = run["results"]
    page = packs.rule(packs.find("ACC102")).page()
    assert (rule["id"], result["ruleId"], result["ruleIndex"]) == ("ACC102", "ACC102", 0)
    assert rule["help"] == {"text": page, "markdown": page}
    assert rule["shortDescription"]["text"] == page.split("\n\n")[0].replace("\n", " ")
    assert result["level"] == "warning"
    assert run["automationDetails"] == {"id": "accumlint/"}
    assert result["partialFingerprints"] == {
        "primaryLocationLineHash": "c129715d7a2bc9a3:1",
        "accumlintFingerprint/v1": "f" * 32,
    }


def test_a_sarif_result_stands_on_one_line_below_the_root() -> None:
    run = sarif_run(told("sarif", checked(report())))
    (location,) = run["results"][0]["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "lib/train.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 3, "startColumn": 5, "endLine": 3, "endColumn": 21},
    }
    assert run["originalUriBaseIds"] == {"%SRCROOT%": {"uri": "file:///src/"}}


def test_a_sarif_result_flows_through_its_window_to_the_step() -> None:
    (result,) = sarif_results(checked(report()))
    (flow,) = result["codeFlows"]
    (thread,) = flow["threadFlows"]
    steps = [step["location"] for step in thread["locations"]]
    lines = [step["physicalLocation"]["region"]["startLine"] for step in steps]
    messages = [step["message"]["text"] for step in steps]
    assert lines == [3, 5]
    assert messages == ["micro-batch 1: backward adds g1", "step applies g1"]
    assert result["relatedLocations"][0]["message"]["text"] == "the accumulation steps"


def test_sarif_takes_no_code_for_a_link() -> None:
    (result,) = sarif_results(checked(report()))
    assert result["message"]["text"].startswith("`losses[i] (x)` is summed")


def test_sarif_tells_what_could_not_be_checked() -> None:
    (invocation,) = sarif_run(told("sarif", *MANY))["invocations"]
    notes = invocation["toolExecutionNotifications"]
    assert invocation["executionSuccessful"] is False
    assert [(note["level"], note["message"]["text"]) for note in notes] == [
        ("error", "syntax error: x"),
        ("warning", "the time ran out"),
        ("note", "backward read partly: no optimizer step is reached"),
    ]


def test_sarif_tells_of_whole_loops_where_coverage_is_asked_for() -> None:
    (invocation,) = sarif_run(told("sarif", UNTRACED, look=replace(LOOK, coverage=True)))[
        "invocations"
    ]
    notes = [note["message"]["text"] for note in invocation["toolExecutionNotifications"]]
    assert notes == ["backward read partly: no optimizer step is reached", "backward read whole"]


def test_sarif_lists_silenced_findings_only_when_asked() -> None:
    # GitHub would open an alert for each.
    assert sarif_results(HELD, BY_SETTINGS) == []
    asked = sarif_results(*MANY, KNOWN, look=Look(root=LOOK.root, silenced=True))
    assert [result.get("suppressions") for result in asked] == [
        None,
        [{"kind": "inSource", "justification": "by hand"}],
        [{"kind": "external"}],
        [{"kind": "external", "justification": "known in the baseline"}],
    ]


def test_a_sarif_region_is_that_of_the_notebook_s_file() -> None:
    place = Place(40, 11, 40, 26)
    mark = Mark(Place(3, 5, 3, 20), "    loss.backward()", cell=Cell(2, "a1"), raw=place)
    found = Report("n.ipynb", "/src/n.ipynb", "ACC102", "x", "m", "error", "likely", mark)
    (result,) = sarif_results(checked(found))
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 40
    assert result["properties"] == {"confidence": "likely", "cell": 2, "cellLine": 3}


# JSON


def test_json_follows_its_schema() -> None:
    (finding,) = findings_of(told("json", *MANY))
    assert findings_of(f"[{told('json-lines', *MANY)}]") == [finding]
    described = json.loads(schema())["$defs"]["finding"]
    assert set(finding) == set(described["properties"]) == set(described["required"])


def test_json_with_coverage_is_an_object_that_holds_the_list() -> None:
    (finding,) = findings_of(told("json", *MANY))
    asked = findings_of(told("json", *MANY, look=replace(LOOK, coverage=True)))
    lost = {
        "cell": None,
        "filename": "/src/d.py",
        "location": {"row": 4, "column": 1},
        "end_location": {"row": 4, "column": 16},
        "read": "partly",
        "reasons": ["no optimizer step is reached"],
    }
    read = [lost, {**lost, "read": "whole", "reasons": []}]
    assert asked == {"schema_version": 1, "findings": [finding], "coverage": read}
    rows = told("json-lines", *MANY, look=replace(LOOK, coverage=True)).splitlines()
    assert [json.loads(row) for row in rows] == [finding, *({"coverage": site} for site in read)]


def test_the_command_prints_the_schema(run: Run) -> None:
    assert json.loads(run("schema").out) == json.loads(schema())


# JUnit


def test_checkstyle_has_a_file_for_each_that_has_something() -> None:
    root = ElementTree.fromstring(told("checkstyle", *MANY))
    files = {file.get("name"): file.findall("error") for file in root.findall("file")}
    assert (root.tag, list(files)) == ("checkstyle", ["lib/train.py", "b.py"])
    (found,) = files["lib/train.py"]
    assert {key: found.get(key) for key in ("line", "column", "severity", "source")} == {
        "line": "3",
        "column": "5",
        "severity": "warning",
        "source": "accumlint.ACC102",
    }
    assert "100%0A of it" in found.get("message", "")
    assert [(row.get("line"), row.get("message")) for row in files["b.py"]] == [
        ("7", "syntax error: x")
    ]


def test_checkstyle_writes_nothing_that_xml_forbids() -> None:
    hostile = replace(report("a\x1b[2J&<b>.py"), message='\x00 "quoted" ]]> \ud800')
    root = ElementTree.fromstring(told("checkstyle", checked(hostile)))
    assert len(root.findall("file/error")) == 1


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package names its documentation."""
    whole: Any = vars(metadata.Distribution)["metadata"].fget

    def told(distribution: metadata.Distribution) -> Any:
        held = whole(distribution)
        held["Project-URL"] = "Documentation, https://docs.example.com/accumlint/"
        return held

    monkeypatch.setattr(metadata.Distribution, "metadata", property(told))
    packs.url.cache_clear()
    yield
    packs.url.cache_clear()


@pytest.mark.usefixtures("documented")
def test_a_rule_has_the_address_of_its_page() -> None:
    page = "https://docs.example.com/accumlint/rules/acc102.html"
    (rule,) = sarif_run(told("sarif", checked(report())))["tool"]["driver"]["rules"]
    (found,) = findings_of(told("json", checked(report())))
    assert (rule["helpUri"], found["url"]) == (page, page)


def test_junit_has_a_suite_for_each_file() -> None:
    suites = junit_suites(told("junit", *MANY))
    told_text = "\n".join(("lib/train.py:3:5", report().headline, *report().gradients))
    failure = ("ACC102 loss-not-divided at 3:5", report().headline, told_text)
    assert suites["lib/train.py"] == Suite(1, 1, 0, (failure,))
    assert suites["b.py"] == Suite(1, 0, 1, ())
    assert suites["ok.py"] == Suite(1, 0, 0, ())


# GitLab and reviewdog


def test_gitlab_has_what_its_widget_asks_for() -> None:
    again = checked(report("lib/other.py"))
    issues = json.loads(told("gitlab", *MANY, again))
    assert [issue["location"] for issue in issues] == [
        {"path": path, "lines": {"begin": 3, "end": 4}} for path in ("lib/other.py", "lib/train.py")
    ]
    assert len({issue["fingerprint"] for issue in issues}) == 2
    assert {issue["severity"] for issue in issues} == {"major"}
    assert {issue["check_name"] for issue in issues} == {"ACC102"}


def test_rdjson_counts_bytes() -> None:
    line = Mark(Place(2, 9, 2, 14), "größe = größe.sum()")
    found = Report("a.py", "/src/a.py", "ACC102", "x", "m", "error", "likely", line)
    (diagnostic,) = rdjson_diagnostics(told("rdjson", checked(found)))
    start, end = diagnostic["location"]["range"]["start"], diagnostic["location"]["range"]["end"]
    data = line.text.encode()
    assert (start["line"], end["line"], diagnostic["severity"]) == (2, 2, "ERROR")
    assert data[start["column"] - 1 : end["column"] - 1].decode() == "größe"


# Fixes

SOURCE = "größe = 1\nif größe: x.clear()  # größe\ny.step()\n"
EDIT = Edit(Place(2, 11, 3, 2), 20, 41, "z")
EDITED = "größe = 1\nif größe: z.step()\n"


def fixed(applicability: str = "unsafe") -> Report:
    lines = SOURCE.splitlines()
    return replace(
        report(), fix=Fix(applicability, "clear it", (replace(EDIT, lines=(lines[1], lines[2])),))
    )


def edited(lines: list[Any], start: tuple[int, int], end: tuple[int, int], new: Any) -> Any:
    """The lines, which are text or bytes, with what stands between two places exchanged."""
    (top, left), (bottom, right) = start, end
    changed = lines[top - 1][: left - 1] + new + lines[bottom - 1][right - 1 :]
    return [*lines[: top - 1], changed, *lines[bottom:]]


def test_a_sarif_fix_makes_the_edit() -> None:
    (result,) = sarif_results(checked(fixed()))
    (change,) = result["fixes"][0]["artifactChanges"]
    (replacement,) = change["replacements"]
    region = replacement["deletedRegion"]
    start, end = (
        (region["startLine"], region["startColumn"]),
        (region["endLine"], region["endColumn"]),
    )
    new = replacement["insertedContent"]["text"]
    assert change["artifactLocation"] == {"uri": "lib/train.py", "uriBaseId": "%SRCROOT%"}
    assert "".join(edited(SOURCE.splitlines(keepends=True), start, end, new)) == EDITED


def test_an_rdjson_suggestion_makes_the_edit() -> None:
    (diagnostic,) = rdjson_diagnostics(told("rdjson", checked(fixed())))
    (suggestion,) = diagnostic["suggestions"]
    start, end = (
        (p["line"], p["column"]) for p in (suggestion["range"]["start"], suggestion["range"]["end"])
    )
    lines = [line.encode() for line in SOURCE.splitlines(keepends=True)]
    assert b"".join(edited(lines, start, end, suggestion["text"].encode())).decode() == EDITED


def test_what_is_only_a_suggestion_is_not_to_be_applied() -> None:
    shown = checked(fixed("display"))
    assert "fixes" not in sarif_results(shown)[0]
    assert rdjson_diagnostics(told("rdjson", shown))[0]["suggestions"] == []
    assert findings_of(told("json", shown))[0]["fix"]["applicability"] == "display"


# Names that try to break out of their line

HOSTILE = [
    "a\nb.py",
    "a\r\n::error::b.py",
    "::error::x.py",
    "  ::add-mask::x.py",
    "##vso[task.setvariable variable=x]y.py",
    "##[error]x.py",
    "\x1b[31mred\x9b0m.py",
    "\u202egnp.py",
    "a]b;c,d:e%0Af=g.py",
    "a|b`c<d>&\"'.py",
    "größe 梯度 😀.py",
    "\udcff.py",
]
FORBIDDEN = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e-\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("file", HOSTILE)
@pytest.mark.parametrize("name", setting_keys.FORMATS)
def test_no_name_breaks_a_format(name: str, file: str) -> None:
    harmless = told(name, checked(report()), broken("b.py"))
    text = told(name, checked(report(file)), broken(file))
    assert not FORBIDDEN.search(text)
    assert [opened(line) for line in text.split("\n")] == [
        opened(line) for line in harmless.split("\n")
    ]


def broken(file: str) -> Checked:
    return Checked(file, problems=(Problem(file, f"cannot read {file}", line=7),))


def opened(line: str) -> list[str]:
    """The commands that a line opens in a CI system's log."""
    return re.findall(r"^\s*::\w+|##(?:vso)?\[[\w.]*", line)


@pytest.mark.parametrize(
    "file", [name for name in HOSTILE if name.isprintable() and "##" not in name]
)
def test_a_name_that_can_be_shown_is_read_back(file: str) -> None:
    result = checked(report(file))
    assert next(annotated(told("github", result)))[1]["file"] == file
    assert next(issues(told("azure", result)))[0]["sourcepath"] == file
    assert json.loads(told("gitlab", result))[0]["location"]["path"] == file


# Where files lie


def test_paths_are_relative_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "link").symlink_to("lib")
    root = repository(tmp_path / "lib")
    assert root == tmp_path.resolve()
    assert relative(str(tmp_path / "link" / "a.py"), root) == "lib/a.py"
    assert relative("/elsewhere/a.py", root) == "/elsewhere/a.py"
    assert relative("-", root) == "-"


# Several outputs at once


def test_several_outputs_in_one_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    outputs = ["--output", "sarif=a.sarif", "--output", "github", "--output", "junit=a.xml"]
    ran = run("check", *outputs, "--output", "gitlab", "train.py")
    annotation, summary, fixable, *rest = ran.out.splitlines()
    assert ran.code == 1
    assert annotation.startswith("::")
    assert summary.startswith("1 finding")
    assert "fixable" in fixable
    assert json.loads("\n".join(rest))[0]["location"]["path"] == "train.py"
    assert len(sarif_run((tmp_path / "a.sarif").read_text())["results"]) == 1
    assert junit_suites((tmp_path / "a.xml").read_text())["train.py"].failures == 1
    assert page.read_text().startswith("before\n### accumlint\n")


def test_files_leave_standard_output_as_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", "--output", "json=a.json", "--color", "always")
    assert f"train.py:{FLAGGED}:13:" in ran.out
    assert json.loads((tmp_path / "a.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "sarf"], "'sarf' is not one of concise"),
        (["--output", "sarif="], "names no file"),
        (["--output", "sarif=absent/a.sarif"], "absent/a.sarif: cannot be written: No such file"),
        (["--output", "json", "--output-format", "json"], "exclude each other"),
        (["--output", "sarif=a.sarif", "--diff"], "takes no output format"),
    ],
)
def test_outputs_that_cannot_be_had(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check", *arguments)
    assert ran.code == 2
    assert message in ran.err
