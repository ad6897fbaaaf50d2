"""Reads the settings: `[tool.accumlint]` of the nearest pyproject.toml under the options of the command."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeGuard

CONFIDENCES = ("certain", "likely", "possible")
FORMATS = (
    "concise",
    "full",
    "grouped",
    "json",
    "json-lines",
    "sarif",
    "github",
    "gitlab",
    "azure",
    "junit",
    "rdjson",
    "markdown",
)
KEYS = (
    "select",
    "extend-select",
    "ignore",
    "exclude",
    "extend-exclude",
    "per-file-ignores",
    "min-confidence",
    "output-format",
)
EXCLUDED = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".git-rewrite",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".pyenv",
    ".pytest_cache",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    ".vscode",
    "__pycache__",
    "__pypackages__",
    "_build",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


class ConfigError(Exception):
    """The settings cannot be used; the message names the file and the mend."""


@dataclass(frozen=True)
class Settings:
    """What holds for the files of one folder. Patterns are relative to `root`; `source` is where they were read."""

    root: Path
    source: Path | None = None
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = EXCLUDED
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    min_confidence: str = "likely"
    output_format: str = ""


@dataclass(frozen=True)
class Options:
    """What the command line says about the settings; empty where it says nothing."""

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    min_confidence: str = ""
    config: Path | None = None
    isolated: bool = False


def shown(file: Path) -> str:
    """The path of a settings file for a message, short where it lies below the current folder."""
    here = Path.cwd()
    return str(file.relative_to(here) if here in file.parents else file)


@cache
def settings(folder: Path, options: Options) -> Settings:
    """The settings for the files of a folder. `--select` starts afresh; the other lists add to the file's."""
    base = _base(folder, options)
    if options.select:
        base = replace(base, select=options.select, extend_select=(), ignore=())
    return replace(
        base,
        extend_select=base.extend_select + options.extend_select,
        ignore=base.ignore + options.ignore,
        min_confidence=options.min_confidence or base.min_confidence,
    )


def _base(folder: Path, options: Options) -> Settings:
    if options.isolated:
        return Settings(Path.cwd())
    if options.config is None:
        return _nearest(folder) or Settings(Path.cwd())
    found = _read(options.config)
    if found is None:
        raise ConfigError(f"{shown(options.config)}: holds no [tool.accumlint] table")
    # A file that was named holds for the whole run, wherever it lies.
    return replace(found, root=Path.cwd())


@cache
def _nearest(folder: Path) -> Settings | None:
    for home in (folder, *folder.parents):
        file = home / "pyproject.toml"
        if file.is_file() and (found := _read(file)):
            return found
    return None


@cache
def _read(file: Path) -> Settings | None:
    """The settings of a file, None where it has no table for us."""
    try:
        data = file.read_bytes()
        # Other people's templates may be no TOML at all; that is none of our business.
        table = _table(data) if b"accumlint" in data else None
        return None if table is None else _settings(file, table)
    except OSError as problem:
        raise ConfigError(f"{shown(file)}: cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise ConfigError(f"{shown(file)}: {problem}") from None


def _table(data: bytes) -> Mapping[str, object] | None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    tool: object = tomllib.loads(data.decode()).get("tool")
    found = tool.get("accumlint") if _is_table(tool) else None
    if found is not None and not _is_table(found):
        raise ValueError("tool.accumlint must be a table")
    return found


def _settings(file: Path, table: Mapping[str, object]) -> Settings:
    for key in table:
        if key not in KEYS:
            raise ValueError(f"[tool.accumlint] has no key {key!r}{_meant(key, KEYS)}")
    exclude = _strings(table, "exclude") if "exclude" in table else EXCLUDED
    return Settings(
        root=file.parent,
        source=file,
        select=_strings(table, "select"),
        extend_select=_strings(table, "extend-select"),
        ignore=_strings(table, "ignore"),
        exclude=exclude + _strings(table, "extend-exclude"),
        per_file_ignores=_lists(table, "per-file-ignores"),
        min_confidence=_word(table, "min-confidence", CONFIDENCES) or "likely",
        output_format=_word(table, "output-format", FORMATS),
    )


def _strings(table: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if _is_list(value):
        strings = tuple(item for item in value if isinstance(item, str) and item.strip())
        if len(strings) == len(value):
            return strings
    example = '["legacy/"]' if key.endswith("exclude") else '["ALL"]'
    raise ValueError(f"{key} must be a list of strings, such as {example}")


def _lists(table: Mapping[str, object], key: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    value = table.get(key, {})
    if not _is_table(value):
        example = '{ "examples/*" = ["ALL"] }'
        raise ValueError(f"{key} must be a table, such as {example}")
    return tuple((pattern, _strings(value, pattern)) for pattern in value)


def _word(table: Mapping[str, object], key: str, words: tuple[str, ...]) -> str:
    value = table.get(key, "")
    if isinstance(value, str) and (value in words or key not in table):
        return value
    close = _meant(value, words) if isinstance(value, str) else ""
    raise ValueError(f"{key} must be one of {', '.join(map(repr, words))}{close}")


def _meant(word: str, words: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word.lower().replace("_", "-"), list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _is_table(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, dict)
