"""`accumlint baseline`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from accumlint import check, config
from accumlint.cli import options, output
from accumlint.common.problem import Kind, Misuse
from accumlint.config import Options
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import printable, printable_path
from accumlint.diagnostics.results import baseline
from accumlint.diagnostics.results.baseline import Known
from accumlint.diagnostics.results.report import Checked, Report
from accumlint.files.inputs.cache import Cache
from accumlint.files.inputs.discovery import Target, find
from accumlint.registry import packs

_Renewed = Callable[
    [Mapping[Known, int], Iterable[Report], Collection[str], Path], Mapping[Known, int]
]


@click.group()
def command() -> None:
    """Keeps known findings in a file, so that only new ones are reported.

    The file is named by the setting `baseline` or by --baseline, else it is accumlint-baseline.json.
    """


@command.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@options.settings
def write(
    paths: tuple[str, ...], configs: options.Configs, isolated: bool, known: Path | None
) -> int:
    """Writes the current findings in PATHS (default: the current folder) to the file, as known findings.

    Known findings of other files stay.
    """
    return _renew(paths, options.settled(configs, isolated, known), baseline.rewritten)


@command.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@options.settings
def prune(
    paths: tuple[str, ...], configs: options.Configs, isolated: bool, known: Path | None
) -> int:
    """Removes known findings that PATHS (default: the current folder) no longer have, and those of deleted files."""
    return _renew(paths, options.settled(configs, isolated, known), baseline.pruned)


@command.command()
@options.settings
def show(configs: options.Configs, isolated: bool, known: Path | None) -> None:
    """Lists the known findings."""
    settings = config.settings(Path.cwd(), options.settled(configs, isolated, known))
    file = settings.baseline or Path.cwd() / baseline.USUAL
    items = baseline.load(file)
    for item, number in sorted(items.items()):
        where = f"{item.file}: {item.code}{f' in {item.scope}' if item.scope else ''}"
        times = f" ({number} times)" if number > 1 else ""
        click.echo(printable_path(f"{where}: {item.statement}{times}"))
    click.echo(f"{count(sum(items.values()), 'finding')} known in {printable(config.shown(file))}")


def _refuse_outside(file: Path) -> None:
    """Settings that are found may come from anybody, and must not choose what is written elsewhere.

    Raises:
        Misuse: for a baseline that does not lie below the current folder.
    """
    here = Path.cwd()
    if here not in Path(os.path.abspath(file)).parents:
        raise Misuse(
            f"{config.shown(file)}: the settings that name this baseline were found, and it lies outside of the "
            "current folder; name it with --baseline"
        )


def _renew(paths: Sequence[str], asked: Options, renewed: _Renewed) -> int:
    """Checks files without their baselines, and writes each baseline anew."""
    here = options.here(asked)
    packs.require(config.typed(asked))
    targets, problems = find(paths or (".",), asked, force_exclude=True)
    by_file: dict[Path, list[Target]] = {here.baseline or Path.cwd() / baseline.USUAL: []}
    for target in targets:
        if target.stdin:
            raise click.UsageError("a baseline knows files, and `-` is none.")
        file = target.settings.baseline or Path.cwd() / baseline.USUAL
        bare = replace(target, settings=replace(target.settings, baseline=None))
        by_file.setdefault(file, []).append(bare)
    if not (asked.baseline or asked.config):
        for file in by_file:
            _refuse_outside(file)
    # A baseline that cannot be read is not written over.
    old: dict[Path, Mapping[Known, int]] = {
        file: baseline.load(file) if file.exists() else {} for file in by_file
    }
    folder = config.cache_dir(here)
    known = Cache(os.path.abspath(folder)) if folder else None
    results: list[Checked] = []
    for file, held in by_file.items():
        done = [
            (target, result) for target, result in zip(held, check.check(held, known), strict=True)
        ]
        results += (result for _, result in done)
        read = {t.file for t, r in done if all(p.kind is Kind.WARNING for p in r.problems)}
        reports = [report for _, result in done for report in result.reports]
        new = renewed(old[file], reports, read, file)
        if new != old[file] or not file.exists():
            baseline.save(file, new)
        click.echo(
            f"{count(sum(new.values()), 'finding')} known in {printable(config.shown(file))}"
        )
    if here.baseline is None:
        click.echo(f'To use it, name it in the settings: baseline = "{baseline.USUAL}"', err=True)
    all_problems = (*problems, *(problem for result in results for problem in result.problems))
    for problem in all_problems:
        output.tell(problem)
    return max((problem.kind for problem in all_problems), default=Kind.WARNING)
