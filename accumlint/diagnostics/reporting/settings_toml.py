"""The settings as TOML, each with the file it comes from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from accumlint.config import Setting
from accumlint.config.setting_keys import KEYS, Kind, WordsByName
from accumlint.diagnostics.reporting.terminal import Look, printable


def settings(held: Sequence[Setting], look: Look) -> Iterator[str]:
    """A line of TOML for each setting with a value, and where it comes from."""
    for setting in held:
        if not setting.value and not setting.origins:
            yield look.paint(f"# {setting.name} is not set", "dim")
            continue
        origin = printable(", ".join(setting.origins)) or "built in"
        name = look.paint(setting.name, "bold" if setting.origins else "dim")
        yield f"{name} = {printable(_toml(setting))}  {look.paint(f'# {origin}', 'dim')}"


def _toml(setting: Setting) -> str:
    """A value as TOML that can be pasted."""
    value = setting.value
    if isinstance(value, str):
        return _quoted(value)
    if KEYS[setting.name].kind in (Kind.RULES_BY_PATTERN, Kind.WORD_BY_RULE):
        pairs = [
            f"{_quoted(name)} = {_quoted(words[0]) if KEYS[setting.name].words else _array(words)}"
            for name, words in cast("WordsByName", value)
        ]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    return _array(cast("tuple[str, ...]", value))


def _array(words: Iterable[str]) -> str:
    return f"[{', '.join(map(_quoted, words))}]"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
