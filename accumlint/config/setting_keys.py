"""What can be set: each key with what it holds, its usual value and its meaning; and their JSON schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias, TypeGuard

from accumlint.common.frozen import frozen

CONFIDENCES = ("certain", "likely", "possible")
SEVERITIES = ("error", "warning", "info")
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
    "checkstyle",
    "markdown",
    "html",
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

WordsByName: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
# What a key holds once it was read.
Value: TypeAlias = str | tuple[str, ...] | WordsByName


class Kind(Enum):
    """What the value of a key is."""

    FILE = "a file"
    WORD = "a word"
    RULES = "rules"
    PATTERNS = "patterns"
    FOLDERS = "folders"
    RULES_BY_PATTERN = "rules by pattern"
    WORD_BY_RULE = "a word by rule"


@frozen
class Key:
    """One setting. `words` are those that may be chosen from; with `adds`, a file adds to what it extends."""

    name: str
    kind: Kind
    meaning: str
    default: Value = ()
    words: tuple[str, ...] = ()
    adds: bool = False

    def read(self, value: object) -> Value:
        """The value, checked.

        Raises:
            ValueError: when it cannot be meant, with an example of what can.
        """
        match self.kind:
            case Kind.FILE:
                if isinstance(value, str) and value.strip():
                    return value
                raise ValueError(f"{self.name} must be a path")
            case Kind.WORD:
                return _word(self.name, value, self.words)
            case Kind.RULES:
                return _strings(self.name, value, '["ALL"]')
            case Kind.PATTERNS:
                return _strings(self.name, value, '["legacy/"]')
            case Kind.FOLDERS:
                return _strings(self.name, value, '["tools/rules"]')
            case Kind.RULES_BY_PATTERN:
                table = _table(self.name, value, '{ "examples/*" = ["ALL"] }')
                return tuple((p, _strings(p, rules, '["ALL"]')) for p, rules in table.items())
            case Kind.WORD_BY_RULE:
                table = _table(self.name, value, '{ ALL = "warning" }')
                return tuple(
                    (r, (_word(f"{self.name}.{r}", w, self.words),)) for r, w in table.items()
                )

    @property
    def schema(self) -> dict[str, object]:
        """The JSON schema of the value."""
        rules = {"type": "array", "items": {"type": "string", "pattern": r"\S"}}
        word = {"type": "string", "enum": list(self.words)}
        shapes: dict[Kind, dict[str, object]] = {
            Kind.FILE: {"type": "string", "pattern": r"\S"},
            Kind.WORD: {**word},
            Kind.RULES: {**rules},
            Kind.PATTERNS: {**rules},
            Kind.FOLDERS: {**rules},
            Kind.RULES_BY_PATTERN: {"type": "object", "additionalProperties": rules},
            Kind.WORD_BY_RULE: {"type": "object", "additionalProperties": word},
        }
        return {"description": self.meaning, **shapes[self.kind]}


KEYS = {
    key.name: key
    for key in (
        Key(
            "extend",
            Kind.FILE,
            "Start from the settings of this file; what is set here comes on top.",
            "",
        ),
        Key(
            "select", Kind.RULES, "Run these rules only: codes, names, beginnings of codes, or ALL."
        ),
        Key("extend-select", Kind.RULES, "Run these rules too.", adds=True),
        Key("ignore", Kind.RULES, "Leave these rules out; of two selectors the longer one wins."),
        Key(
            "exclude", Kind.PATTERNS, "Files and folders to leave out, as in .gitignore.", EXCLUDED
        ),
        Key("extend-exclude", Kind.PATTERNS, "Files and folders to leave out, too.", adds=True),
        Key(
            "per-file-ignores",
            Kind.RULES_BY_PATTERN,
            "Rules to leave out in some files.",
            adds=True,
        ),
        Key(
            "severity",
            Kind.WORD_BY_RULE,
            "Severities by rule: a code, a name, the beginning of a code, or ALL.",
            words=SEVERITIES,
            adds=True,
        ),
        Key("min-confidence", Kind.WORD, "The least sure findings to show.", "likely", CONFIDENCES),
        Key("min-severity", Kind.WORD, "The least grave findings to show.", "info", SEVERITIES),
        Key(
            "output-format",
            Kind.WORD,
            "How to print findings; usually full on a terminal, else concise.",
            "",
            FORMATS,
        ),
        Key(
            "rule-folders",
            Kind.FOLDERS,
            "Folders of rules of one's own; executed, so the file must be named with --config.",
            adds=True,
        ),
        Key(
            "cache-dir",
            Kind.FILE,
            "The folder of the cache, usually the user's; the file must be named with --config.",
            "",
        ),
        Key("baseline", Kind.FILE, "The file of known findings, which are not reported.", ""),
    )
}


def find(name: str) -> Key:
    """The key of this name.

    Raises:
        ValueError: when there is none, with the likely one.
    """
    if name not in KEYS:
        raise ValueError(f"the settings have no key {name!r}{_meant(name, KEYS)}")
    return KEYS[name]


def schema() -> dict[str, object]:
    """The JSON schema of an accumlint.toml, and of the table [tool.accumlint]."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "accumlint",
        "description": "Settings of accumlint: accumlint.toml, or the table [tool.accumlint] of pyproject.toml.",
        "type": "object",
        "properties": {key.name: key.schema for key in KEYS.values()},
        "additionalProperties": False,
    }


def _strings(name: str, value: object, example: str) -> tuple[str, ...]:
    if _is_list(value):
        strings = tuple(item for item in value if isinstance(item, str) and item.strip())
        if len(strings) == len(value):
            return strings
    raise ValueError(f"{name} must be a list of strings, such as {example}")


def _table(name: str, value: object, example: str) -> Mapping[str, object]:
    if _is_table(value):
        return value
    raise ValueError(f"{name} must be a table, such as {example}")


def _word(name: str, value: object, words: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in words:
        return value
    close = _meant(value, words) if isinstance(value, str) else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}{close}")


def _meant(word: str, words: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word.lower().replace("_", "-"), list(words), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _is_table(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, dict)
