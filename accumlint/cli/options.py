"""Options that several commands take, and what is typed for them as values."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from accumlint import config
from accumlint.config import ConfigError, Options, Settings, setting_keys
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.registry import packs

# A file of settings, and settings that were typed.
Configs = tuple[Path | None, tuple[str, ...]]
Outputs = tuple[tuple[str, str], ...]
Command = TypeVar("Command", bound="Callable[..., object] | click.Command")


def words(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option that may be repeated and may hold several, separated by commas."""
    return tuple(word.strip() for value in values for word in value.split(",") if word.strip())


def rules_like(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The codes and names that continue what a user has begun to type, behind the last comma."""
    before, comma, word = begun.rpartition(",")
    known = [known for entry in packs.catalogue() for known in (entry.code, entry.name)]
    matching = [known for known in known if known.lower().startswith(word.lower())]
    return [f"{before}{comma}{known}" for known in matching]


def formats_like(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    """The formats that continue what a user has begun to type."""
    return [name for name in setting_keys.FORMATS if name.startswith(begun)]


def outputs(formats: Sequence[str]) -> Callable[..., Outputs]:
    """What gives the formats that are typed with the files that they are written to, "" for standard output."""

    def typed(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Outputs:
        pairs = [value.partition("=") for value in values]
        for name, equals, file in pairs:
            if name not in formats:
                raise click.BadParameter(f"{name!r} is not one of {', '.join(formats)}.")
            if equals and not file:
                raise click.BadParameter(f"{name}= names no file.")
        return tuple((name, "" if file == "-" else file) for name, _, file in pairs)

    return typed


def flag(*names: str, told: str) -> Callable[[Command], Command]:
    """An option that is given or not."""
    return click.option(*names, is_flag=True, help=told)


def rules(option: str, told: str) -> Callable[[Command], Command]:
    """An option that takes rules and may be repeated."""
    return click.option(
        option, multiple=True, metavar="RULES", callback=words, shell_complete=rules_like, help=told
    )


def _configs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> Configs:
    """The file of settings that is named, and the settings that are typed."""
    files = [value for value in values if os.path.isfile(value)]
    typed = tuple(value for value in values if value not in files)
    for value in typed:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is neither a file nor KEY=VALUE.")
    if len(files) > 1:
        raise click.BadParameter("one file of settings is enough; let it extend the other.")
    return Path(os.path.abspath(files[0])) if files else None, typed


def _look(_: click.Context, __: click.Parameter, color: str) -> Look:
    """What standard output can show; NO_COLOR and FORCE_COLOR overrule a guess, not an option."""
    automatic = not os.environ.get("NO_COLOR") and (
        bool(os.environ.get("FORCE_COLOR"))
        or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
    )
    try:
        "╭│╰─┆".encode(sys.stdout.encoding or "ascii")
        boxes = True
    except UnicodeEncodeError:
        boxes = False
    return Look(color == "always" or (color == "auto" and automatic), boxes)


MIN_CONFIDENCE = click.option(
    "--min-confidence",
    type=click.Choice(setting_keys.CONFIDENCES),
    help="Lowest confidence to report (likely).",
)
OUTPUT = click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[=FILE]",
    callback=outputs(setting_keys.FORMATS),
    shell_complete=formats_like,
    help="Print findings in this format, or write them to FILE; may be repeated.",
)
EXIT_ZERO = flag("--exit-zero", told="Exit with 0 although there are findings.")
STDIN_FILENAME = click.option(
    "--stdin-filename", default="", metavar="FILE", help="The name of what `-` reads from stdin."
)
CONFIG = click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE|KEY=VALUE",
    callback=_configs,
    help="Take the settings from this file, or set one; may be repeated.",
)
ISOLATED = flag("--isolated", told="Read no configuration file.")


def _as_named(_: click.Context, __: click.Parameter, file: Path | None) -> Path | None:
    """The whole path of a file, links unfollowed: where one leads is asked before it is written."""
    return Path(os.path.abspath(file)) if file else None


BASELINE = click.option(
    "--baseline",
    "known",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_as_named,
    help="The file of known findings.",
)


def settings(command: Command) -> Command:
    """The options that say which settings hold."""
    return CONFIG(ISOLATED(BASELINE(command)))


CACHE_DIR = click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the cache (accumlint in the user's cache folder).",
)
COLOR = click.option(
    "--color",
    "look",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    callback=_look,
    help="When to use colours; auto obeys NO_COLOR and FORCE_COLOR.",
)


# What a file must be named for to set, and why.
_RESERVED = {
    "rule-folders": "hold code that is executed",
    "cache-dir": "says where files are written and removed",
}


def settled(configs: Configs, isolated: bool, known: Path | None = None) -> Options:
    """What CONFIG, ISOLATED and BASELINE say together."""
    file, inline = configs
    if isolated and file:
        raise click.UsageError("--isolated and --config FILE exclude each other.")
    return Options(config=file, inline=inline, isolated=isolated, baseline=known)


def here(asked: Options) -> Settings:
    """The settings of the current folder, once the rules of their folders are in the catalogue.

    Raises:
        ConfigError: when a file that nobody has named decides what only the user may: it may be somebody else's.
    """
    held = config.settings(Path.cwd(), asked)
    if asked.config is None:
        for key, what in _RESERVED.items():
            for file in held.files_that_set(key):
                raise ConfigError(
                    f"{file}: {key} {what}; to allow it, name the file: --config {file}"
                )
    packs.add(held.rule_folders)
    return held


def exclude_each_other(option: str, **others: object) -> None:
    """Refuses an option together with others that are given; `stdin` stands for `-`."""
    for name, given in others.items():
        if given:
            other = "-" if name == "stdin" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} and {other} exclude each other.")
