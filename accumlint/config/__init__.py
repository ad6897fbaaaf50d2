"""Reads the settings: those of the nearest file that has some, under those of the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import cast

from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse
from accumlint.config import setting_keys
from accumlint.config.setting_keys import KEYS, Kind, Value, WordsByName
from accumlint.files.regular import SETTINGS, contents

# Where settings stand, in the order in which a folder is asked.
FILES = ("accumlint.toml", "pyproject.toml")
TYPED = "the command line"

# Reading a key takes the square of its parts.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){100}""")
_BARE = re.compile(r"\s*([\w.-]+)\s*=\s*([\w./\\-]+)\s*")


class ConfigError(Misuse):
    """The settings cannot be used; the message names the file and the mend."""


@frozen
class Setting:
    """One key with its value, and the files that set it; none for the usual value."""

    name: str
    value: Value
    origins: tuple[str, ...] = ()

    def under(self, value: Value, origin: str) -> Setting:
        """The setting after a stronger place has set it."""
        if KEYS[self.name].adds:
            return Setting(self.name, cast("Value", (*self.value, *value)), (*self.origins, origin))
        return Setting(self.name, value, (origin,))


@frozen
class Settings:
    """What holds for the files of one folder.

    Patterns are relative to `root`. `files` are those that were read, the nearest first. `all` has every key of them,
    without what the options of the command add. Without `include_tests`, findings in tests are only counted.
    """

    root: Path
    files: tuple[Path, ...] = ()
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = setting_keys.EXCLUDED
    per_file_ignores: WordsByName = ()
    severity: WordsByName = ()
    min_confidence: str = "likely"
    min_severity: str = "info"
    output_format: str = ""
    baseline: Path | None = None
    cache_dir: Path | None = None
    rule_folders: tuple[Path, ...] = ()
    include_tests: bool = True
    all: tuple[Setting, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Every file asks for what its settings lead to.
        return hash((self.root, self.files, self.all, self.select, self.ignore, self.baseline))

    @property
    def selectors(self) -> tuple[str, ...]:
        """Everything in the settings that must name rules."""
        in_files = (rule for _, rules in self.per_file_ignores for rule in rules)
        of_severity = (rule for rule, _ in self.severity)
        return (*self.select, *self.extend_select, *self.ignore, *in_files, *of_severity)

    def files_that_set(self, name: str) -> list[str]:
        """The files that set a key."""
        held = (setting.origins for setting in self.all if setting.name == name)
        return [origin for origins in held for origin in origins if origin != TYPED]


@frozen
class Options:
    """What the command line says about the settings; empty where it says nothing. `inline` are KEY=VALUE in TOML."""

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    min_confidence: str = ""
    min_severity: str = ""
    config: Path | None = None
    isolated: bool = False
    inline: tuple[str, ...] = ()
    baseline: Path | None = None
    include_tests: bool = False


@frozen
class _Layer:
    """The values that one file, or the command line, sets."""

    origin: str
    values: Mapping[str, Value]


def shown(file: Path) -> str:
    """The path of a settings file for a message, short where it lies below the current folder."""
    here = Path.cwd()
    return str(file.relative_to(here) if here in file.parents else file)


def settings(folder: Path, options: Options) -> Settings:
    """The settings for the files of a folder. `--select` starts afresh; the other lists add to the file's."""
    if options.isolated or options.config:
        # A file that was named holds for the whole run, wherever it lies.
        return _settings(Path.cwd(), options.config, options)
    file = _nearest(folder)
    return _settings(file.parent if file else Path.cwd(), file, options)


@cache
def _settings(root: Path, file: Path | None, options: Options) -> Settings:
    layers = _chain(file) if file else {}
    if options.config and not layers:
        raise ConfigError(f"{shown(options.config)}: holds no [tool.accumlint] table")
    base = _merged(root, tuple(layers), [*reversed(layers.values()), *_inline(options)])
    if options.select:
        base = replace(base, select=options.select, extend_select=(), ignore=())
    return replace(
        base,
        extend_select=base.extend_select + options.extend_select,
        ignore=base.ignore + options.ignore,
        min_confidence=options.min_confidence or base.min_confidence,
        min_severity=options.min_severity or base.min_severity,
        baseline=options.baseline or base.baseline,
        include_tests=options.include_tests,
    )


def cache_dir(held: Settings) -> Path | None:
    """The folder of the cache of a run for whose current folder these settings hold."""
    return held.cache_dir or user_cache()


def user_cache() -> Path | None:
    """The user's folder for what may be lost, as each system has it; None for who has no home."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    places = {
        "win32": ("LOCALAPPDATA", home / "AppData/Local"),
        "darwin": ("", home / "Library/Caches"),
    }
    variable, usual = places.get(sys.platform, ("XDG_CACHE_HOME", home / ".cache"))
    named = os.environ.get(variable, "")
    # The standard has relative paths passed over: they would lead into the tree.
    return (Path(named) if os.path.isabs(named) else usual) / "accumlint"


def forget() -> None:
    """From now on settings are read anew: their files may have changed."""
    for known in (_settings, _own, _read):
        known.cache_clear()


def is_settled(file: Path) -> bool:
    """True when a file holds settings of ours, even if none is set.

    Raises:
        ConfigError: when it cannot be read.
    """
    return file.is_file() and _read(file) is not None


def is_toml(text: str) -> bool:
    try:
        _parsed(text)
    except ValueError:
        return False
    return True


def typed(options: Options) -> tuple[str, ...]:
    """Everything on the command line that must name rules."""
    inline = _merged(Path.cwd(), (), _inline(options)).selectors
    return (*options.select, *options.extend_select, *options.ignore, *inline)


def _nearest(folder: Path) -> Path | None:
    """The nearest file, in a folder or above it, that has a table for us."""
    return next((file for home in (folder, *folder.parents) if (file := _own(home))), None)


@cache
def _own(folder: Path) -> Path | None:
    files = (folder / name for name in FILES)
    return next((file for file in files if file.is_file() and _chain(file)), None)


def _chain(file: Path) -> dict[Path, _Layer]:
    """What a file sets, and each file that it extends; empty where the first has no table for us."""
    chain: dict[Path, _Layer] = {}
    while (layer := _read(file)) is not None:
        chain[file] = layer
        extended = layer.values.get("extend")
        if not isinstance(extended, str):
            return chain
        before, file = file, Path(extended)
        if file in chain:
            raise ConfigError(f"{shown(before)}: extend leads back to {shown(file)}")
        if not file.is_file():
            raise ConfigError(f"{shown(before)}: extend: there is no file {shown(file)}")
    if chain:
        raise ConfigError(f"{shown(file)}: holds no [tool.accumlint] table")
    return chain


@cache
def _read(file: Path) -> _Layer | None:
    """What a file sets, None where it has no table for us."""
    try:
        data = contents(file, SETTINGS)
        # Other people's templates may be no TOML at all; that is none of our business.
        if file.name == "pyproject.toml" and b"accumlint" not in data:
            return None
        table = _table(_parsed(data.decode()), file)
        return None if table is None else _layer(shown(file), table, file.parent)
    except OSError as problem:
        raise ConfigError(f"{shown(file)}: cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        reason = str(problem) if isinstance(problem, ValueError) else "nested too deeply"
        raise ConfigError(f"{shown(file)}: {reason}") from None


def _table(document: Mapping[str, object], file: Path) -> Mapping[str, object] | None:
    """Our table: in a pyproject.toml, or what has its form, `tool.accumlint`; else the whole file."""
    if file.name != "pyproject.toml" and "tool" not in document:
        return document
    tool = document.get("tool")
    found = cast("Mapping[str, object]", tool).get("accumlint") if isinstance(tool, dict) else None
    if found is not None and not isinstance(found, dict):
        raise ValueError("tool.accumlint must be a table")
    return cast("Mapping[str, object] | None", found)


def _inline(options: Options) -> list[_Layer]:
    """What `--config KEY=VALUE` sets."""
    return [_inline_layer(text) for text in options.inline]


def _inline_layer(text: str) -> _Layer:
    try:
        # A bare word is no TOML, but quotes are a nuisance on a command line.
        bare = _BARE.fullmatch(text)
        table = {bare[1]: bare[2]} if bare and bare[1] in KEYS else _parsed(text)
        return _layer(TYPED, table, Path.cwd())
    except ValueError as problem:
        raise ConfigError(f"--config {text}: {problem}") from None


def _parsed(text: str) -> Mapping[str, object]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if _DEEP_KEY.search(text):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise ValueError(f"is no TOML: {problem}") from None


def _layer(origin: str, table: Mapping[str, object], folder: Path) -> _Layer:
    values = {name: setting_keys.find(name).read(value) for name, value in table.items()}
    for name, value in values.items():
        if KEYS[name].kind is Kind.FILE:
            values[name] = _absolute(folder, cast("str", value))
        elif KEYS[name].kind is Kind.FOLDERS:
            values[name] = tuple(_absolute(folder, one) for one in cast("tuple[str, ...]", value))
    return _Layer(origin, values)


def _absolute(folder: Path, path: str) -> str:
    if "\0" in path:
        raise ValueError("no path holds a NUL character")
    return os.path.abspath(folder / Path(path).expanduser())


def _merged(root: Path, files: tuple[Path, ...], layers: Iterable[_Layer]) -> Settings:
    """What several layers set together, the strongest last."""
    held = {name: Setting(name, key.default) for name, key in KEYS.items()}
    for layer in layers:
        for name, value in layer.values.items():
            held[name] = held[name].under(value, layer.origin)

    def word(name: str) -> str:
        return cast("str", held[name].value)

    def words(name: str) -> tuple[str, ...]:
        return cast("tuple[str, ...]", held[name].value)

    def words_by_name(name: str) -> WordsByName:
        return cast("WordsByName", held[name].value)

    return Settings(
        root=root,
        files=files,
        select=words("select"),
        extend_select=words("extend-select"),
        ignore=words("ignore"),
        exclude=words("exclude") + words("extend-exclude"),
        per_file_ignores=words_by_name("per-file-ignores"),
        severity=words_by_name("severity"),
        min_confidence=word("min-confidence"),
        min_severity=word("min-severity"),
        output_format=word("output-format"),
        baseline=Path(word("baseline")) if word("baseline") else None,
        cache_dir=Path(word("cache-dir")) if word("cache-dir") else None,
        rule_folders=tuple(map(Path, words("rule-folders"))),
        all=tuple(held.values()),
    )
