"""Reads what we write with the tools of others, as plain values; they carry few types."""
# pyright: basic

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import junitparser
import nbformat
from click.testing import CliRunner
from markdown_it import MarkdownIt
from pre_commit.clientlib import load_config
from pydantic import BaseModel
from ruamel.yaml import YAML
from sarif_pydantic import Sarif

from accumlint.diagnostics.reporting import schema

# Properties of SARIF 2.1.0 that sarif-pydantic does not list.
IN_SARIF_TOO = {
    "Invocation.toolExecutionNotifications",
    "Result.suppressions",
    "Run.columnKind",
}


@dataclass(frozen=True)
class Suite:
    """A suite of a JUnit report with its numbers, and name, message and text of each failure."""

    tests: int
    failures: int
    errors: int
    failed: tuple[tuple[str, str, str], ...]


def junit_suites(text: str) -> dict[str, Suite]:
    """The suites of a JUnit report by name."""
    return {
        suite.name or "": Suite(
            suite.tests or 0,
            suite.failures or 0,
            suite.errors or 0,
            tuple(
                (case.name or "", result.message or "", result.text or "")
                for case in suite
                for result in case.result
                if isinstance(result, junitparser.Failure)
            ),
        )
        for suite in junitparser.JUnitXml.fromstring(text)
    }


def sarif_run(text: str) -> dict[str, Any]:
    """The only run of a SARIF log, as JSON; raises where the log breaks the format."""
    _hold(text, "sarif-schema-2.1.0.json")
    log = Sarif.model_validate_json(text)
    unknown = set(_unknown(log)) - IN_SARIF_TOO
    assert not unknown, f"SARIF has no {unknown}"
    assert log.runs[0].tool.driver.name == "accumlint"
    return json.loads(text)["runs"][0]


def rdjson_diagnostics(text: str) -> list[dict[str, Any]]:
    """The diagnostics of Reviewdog's format, as JSON; raises where they break its schema."""
    _hold(text, "rdf-diagnostic-result.json")
    return json.loads(text)["diagnostics"]


def _hold(text: str, schema: str) -> None:
    """Raises where a text breaks one of the schemas that others have published."""
    _validator(schema).validate(json.loads(text))


@cache
def _validator(schema: str) -> jsonschema.Draft4Validator:
    file = Path(__file__).parent / "schemas" / schema
    return jsonschema.Draft4Validator(json.loads(file.read_text(encoding="utf-8")))


def _unknown(model: BaseModel) -> Iterator[str]:
    """The properties below a model that it does not know: misspelt ones, or what the library lacks."""
    yield from (f"{type(model).__name__}.{name}" for name in model.model_extra or ())
    for value in dict(model).values():
        held = value.values() if isinstance(value, dict) else value
        for item in held if isinstance(held, Iterable) else (held,):
            if isinstance(item, BaseModel):
                yield from _unknown(item)


def findings_of(text: str) -> Any:
    """The findings in our JSON; raises where they break the published schema."""
    published = json.loads(schema())
    jsonschema.Draft202012Validator.check_schema(published)
    found = json.loads(text)
    jsonschema.validate(found, published, cls=jsonschema.Draft202012Validator)
    return found


def complaints(file: str, schema: str, *options: str) -> str:
    """What check-jsonschema says against a file by one of its own schemas, "" for nothing."""
    ran = CliRunner().invoke(
        check_jsonschema.main, ["--builtin-schema", f"vendor.{schema}", *options, file]
    )
    return "" if ran.exit_code == 0 else ran.output or str(ran.exception)


def notebook_sources(file: Path) -> list[str]:
    """The sources of a notebook's cells; raises where it breaks nbformat's schema."""
    read = nbformat.read(file, as_version=4)
    nbformat.validate(read)
    return [cell.source for cell in read.cells]


def hook_entries(file: Path) -> list[tuple[str, list[str]]]:
    """The repositories of a pre-commit configuration with their hooks; raises where pre-commit refuses it."""
    read = load_config(str(file))
    return [(repo["repo"], [hook["id"] for hook in repo["hooks"]]) for repo in read["repos"]]


def yaml(file: Path) -> Any:
    """A YAML file as plain values."""
    return YAML(typ="safe").load(file)


def table_rows(text: str) -> list[list[str]]:
    """The rows of a Markdown page's tables, without their heads, as the text and tags in their cells."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows[1:]


# Commands in logs, decoded as GitHub's runner (actions/runner, ActionCommand.cs) and Azure's agent decode them.


def annotated(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    for line in text.split("\n"):
        if match := re.fullmatch(r"::(error|warning|notice) (.*?)::(.*)", line):
            pairs = (pair.split("=", 1) for pair in match[2].split(","))
            yield match[1], {key: decoded(value) for key, value in pairs}, decoded(match[3])


def decoded(text: str) -> str:
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, char)
    return text


def issues(text: str) -> Iterator[tuple[dict[str, str], str]]:
    for line in text.split("\n"):
        if match := re.fullmatch(r"##vso\[task\.logissue ([^\]]*)\](.*)", line):
            pairs = (pair.split("=", 1) for pair in match[1].split(";") if pair)
            yield {key: unescaped(value) for key, value in pairs}, unescaped(match[2])


def unescaped(text: str) -> str:
    for code, char in (("%3B", ";"), ("%0D", "\r"), ("%0A", "\n"), ("%5D", "]"), ("%AZP25", "%")):
        text = text.replace(code, char)
    return text
