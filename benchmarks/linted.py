"""Reads what a linter found, from SARIF 2.1.0 or from accumlint's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from labelled import InputError, toml

OWN = re.compile(r"ACC\d{3}")


@dataclass(frozen=True)
class Finding:
    """A finding in a labelled commit; `part` is the folder above that of the commit, `path` the rest below it."""

    rule: str
    part: str
    folder: str
    path: str
    line: int


def read(file: Path, folders: Collection[str]) -> list[Finding]:
    """The findings of a linter's output in the `folders` of labelled commits."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not UTF-8") from None
    return parsed(text, str(file), folders)


def parsed(text: str, name: str, folders: Collection[str]) -> list[Finding]:
    """The findings that `text` holds; errors call it `name`."""
    try:
        document: Any = json.loads(text)
        rows = list((_own if text.lstrip().startswith("[") else _sarif)(document))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise InputError(f"{name}: neither SARIF 2.1.0 nor accumlint's JSON") from None
    return [found for row in rows if (found := _placed(*row, folders)) is not None]


def rule_map(file: Path, known: Collection[str]) -> dict[str, frozenset[str]]:
    """The rules of the labels that each rule of another linter stands for."""
    table: dict[str, frozenset[str]] = {}
    for rule, told in toml(file).items():
        if type(told) not in (str, list):
            raise InputError(f"{file}: {rule} is neither a rule nor a list of rules")
        names: list[Any] = [told] if type(told) is str else told
        for name in map(str, names):
            if name not in known and not OWN.fullmatch(name):
                raise InputError(f"{file}: {rule}: no label has the rule {name!r}")
        table[rule] = frozenset(map(str, names))
    return table


def _own(document: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, int]]:
    """Rule, file and line of each finding in accumlint's JSON."""
    for row in document:
        yield str(row["code"]), row["filename"], int(row["location"]["row"])


def _sarif(document: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Rule, file and line of each finding in SARIF."""
    if document["version"] != "2.1.0":
        raise ValueError
    for run in document["runs"]:
        for result in run.get("results", ()):
            yield from _result(result, run)


def _result(result: Mapping[str, Any], run: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    # What a linter was told to be silent about, and what it says is in order, is no finding.
    if result.get("suppressions") or result.get("kind", "fail") != "fail":
        return
    rules: Sequence[Mapping[str, Any]] = run["tool"]["driver"].get("rules", ())
    asked: Mapping[str, Any] = result.get("rule", {})
    rule: str = result.get("ruleId") or asked.get("id", "")
    index: int = result.get("ruleIndex", asked.get("index", -1))
    if not rule and index >= 0:
        rule = rules[index]["id"]
    for location in result.get("locations", ())[:1]:
        place = location["physicalLocation"]
        line = place.get("region", {}).get("startLine", 1)
        yield rule, unquote(urlsplit(_address(place["artifactLocation"], run)).path), int(line)


def _address(told: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    if "uri" not in told:
        told = run["artifacts"][told["index"]]["location"]
    base: Mapping[str, Any] = run.get("originalUriBaseIds", {}).get(told.get("uriBaseId"), {})
    return f"{base.get('uri', '')}{told['uri']}"


def _placed(rule: str, file: str, line: int, folders: Collection[str]) -> Finding | None:
    parts = file.replace("\\", "/").split("/")
    for at, part in enumerate(parts):
        if part in folders:
            above = parts[at - 1] if at else ""
            return Finding(rule, above, part, "/".join(parts[at + 1 :]), line)
    return None
