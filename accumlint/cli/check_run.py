"""One run of `accumlint check`: targets to results, results to where they are wanted."""

from __future__ import annotations

import os
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from accumlint import check
from accumlint.cli import output
from accumlint.cli.options import Configs, Outputs
from accumlint.common.frozen import frozen
from accumlint.common.progress import Progress
from accumlint.config import Settings
from accumlint.diagnostics.reporting import fix_summary, reporter
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import Checked
from accumlint.diagnostics.suppression_filter import is_as_grave
from accumlint.files.inputs.discovery import Target

if TYPE_CHECKING:
    from accumlint.diagnostics.fixing import Fixed
    from accumlint.files.inputs.cache import Cache

FINDINGS = 1


@frozen
class CheckOptions:
    """What is typed for `accumlint check`; `add_ignore` is the reason of the ignores to write (None: write none)."""

    paths: tuple[str, ...]
    select: tuple[str, ...]
    ignore: tuple[str, ...]
    extend_select: tuple[str, ...]
    min_confidence: str | None
    min_severity: str | None
    output_format: str | None
    outputs: Outputs
    sarif_category: str
    sarif_silenced: bool
    configs: Configs
    isolated: bool
    known: Path | None
    diff_base: str
    add_ignore: str | None
    fix: bool
    unsafe_fixes: bool
    diff: bool
    show_fixes: bool
    exit_non_zero_on_fix: bool
    exit_zero: bool
    fail_on: str
    watch: bool
    quiet: bool
    coverage: bool
    statistics: bool
    jobs: int
    include_tests: bool
    show_files: bool
    force_exclude: bool
    cache_dir: Path | None
    no_cache: bool
    stdin_filename: str
    look: Look


@frozen
class Delivery:
    """The formats that are printed, those that are written to files, and how."""

    printed: tuple[str, ...]
    files: Outputs
    look: Look
    statistics: bool = False

    @property
    def draws(self) -> bool:
        """True when a format is asked for that shows pictures."""
        return "html" in (*self.printed, *(name for name, _ in self.files))


def run(
    here: Settings,
    targets: Sequence[Target],
    given: CheckOptions,
    delivery: Delivery,
    cache: Cache | None,
) -> int:
    """Checks the targets, delivers what was found, and returns the exit code; `here` holds for the current folder."""
    asked = dict.fromkeys((here, *(target.settings for target in targets)))
    for settings in asked:
        if settings.baseline:
            from accumlint.diagnostics.results import baseline

            baseline.load(settings.baseline)
    moving = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    progress = Progress(sys.stderr, moving and not delivery.look.quiet)
    coming = progress.through(targets)
    results: list[Checked] = []
    if given.diff:
        from accumlint.diagnostics import fixing

        fixes = fixing.fix_files(coming, unsafe=given.unsafe_fixes)
        output.put(_differences(fixes, results, progress, delivery.look))
        output.put(fix_summary.outlook(results, names=given.show_fixes), sys.stderr)
        changed = any(result.mended for result in results) and not given.exit_zero
        return max(_gravest(results), FINDINGS if changed else 0)
    # Whether a file is named changes nothing about its settings.
    written = dict.fromkeys(replace(settings, include_tests=True) for settings in asked)
    of_settings = chain.from_iterable(map(check.check_settings, written))
    found = chain(of_settings, _found(coming, targets, given, cache, drawn=delivery.draws))
    fixed_stdin = given.fix and any(target.stdin for target in targets)
    kept = _kept(found, results, progress)
    failed = _deliver(kept, results, delivery, on_stderr=fixed_stdin)
    writes = given.fix or given.add_ignore is not None
    # A reader that stops early (`| head`) must not cut short what is written to files.
    deque(kept if writes else (), maxlen=0)
    if given.show_fixes:
        output.put(fix_summary.mended(results), sys.stderr)
    found = (report for result in results for report in result.reports)
    grave = any(is_as_grave(report, given.fail_on) for report in found)
    failing = grave and not given.exit_zero
    was_fixed = given.exit_non_zero_on_fix and any(result.mended for result in results)
    return max(failed, _gravest(results), FINDINGS if failing or was_fixed else 0)


def _found(
    targets: Iterable[Target],
    spread: Sequence[Target],
    given: CheckOptions,
    cache: Cache | None,
    *,
    drawn: bool,
) -> Iterator[Checked]:
    """What there is to report once the work is done; files to `spread` may be checked ahead."""
    if given.fix:
        return _fixed(targets, given.unsafe_fixes)
    if given.add_ignore is not None:
        return _ignored(targets, given.add_ignore.strip())
    if drawn:
        from accumlint.diagnostics.drawing.traced_loops import illustrate

        # What a loop looks like is not kept.
        found = check.check(targets, None, illustrate, spread, given.jobs)
    else:
        found = check.check(targets, cache, None, spread, given.jobs)
    if given.diff_base:
        from accumlint.diagnostics.results import changed_lines

        since = changed_lines.since(given.diff_base, str(Path.cwd()))
        return (replace(r, reports=tuple(filter(since.touch, r.reports))) for r in found)
    return found


def _deliver(
    coming: Iterator[Checked], results: Sequence[Checked], delivery: Delivery, *, on_stderr: bool
) -> int:
    """Prints the results as they come, then writes them in the other formats; returns the gravest of what failed."""
    reporters = [reporter(name, statistics=delivery.statistics) for name in delivery.printed]
    output.put(reporters[0](coming, delivery.look), sys.stderr if on_stderr else sys.stdout)
    # The other outputs are whole even if the reader of the first one stopped early.
    deque(coming if reporters[1:] or delivery.files else (), maxlen=0)
    for write in reporters[1:]:
        output.put(write(results, delivery.look))
    plain = replace(delivery.look, color=False)
    written = [output.write(reporter(name)(results, plain), file) for name, file in delivery.files]
    if "github" in delivery.printed and (page := os.environ.get("GITHUB_STEP_SUMMARY")):
        written.append(output.write(reporter("markdown")(results, plain), page, "a"))
    return max(written, default=0)


def _ignored(targets: Iterable[Target], reason: str) -> Iterator[Checked]:
    """What is left to report once ignores were written."""
    from accumlint.diagnostics.fixing import ignore_comments

    files = comments = 0
    for done in ignore_comments.ignore(targets, reason):
        files += bool(done.added)
        comments += done.added
        yield done.checked
    print(f"Ignored {count(comments, 'finding')} in {count(files, 'file')}", file=sys.stderr)


def _kept(results: Iterable[Checked], kept: list[Checked], progress: Progress) -> Iterator[Checked]:
    """The results as they come, kept for the verdict, their problems told."""
    for result in results:
        if result.reports or result.problems:
            progress.clear()
        kept.append(result)
        for problem in result.problems:
            output.tell(problem)
        yield result


def _differences(
    results: Iterable[Fixed], kept: list[Checked], progress: Progress, look: Look
) -> Iterator[str]:
    """The diff of each file that would change."""
    from accumlint.diagnostics.reporting.diff import difference

    verbatim = not _is_read(sys.stdout)
    for result in results:
        if result.is_changed:
            progress.clear()
            for name, before, after in result.changes:
                rows = difference(before, after, name, look, verbatim=verbatim)
                yield "".join(rows).removesuffix("\n")
        kept.extend(_kept([result.checked], [], progress))


def _is_read(stream: TextIO) -> bool:
    """True where a person reads the output, or a CI system obeys it; programs such as `git apply` want it verbatim."""
    if stream.isatty():
        return True
    is_log = bool(os.environ.get("GITHUB_ACTIONS") or os.environ.get("TF_BUILD"))
    try:
        return is_log and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return is_log


def _fixed(targets: Iterable[Target], unsafe: bool) -> Iterator[Checked]:
    """The results of fixing; what came from stdin goes to stdout, whether it changed or not."""
    from accumlint.diagnostics import fixing

    for result in fixing.fix_files(targets, unsafe=unsafe):
        if result.target.stdin:
            sys.stdout.flush()
            sys.stdout.buffer.write(result.after)
            sys.stdout.buffer.flush()
            yield result.checked
        else:
            yield from fixing.written([result])


def _gravest(results: Iterable[Checked]) -> int:
    """The exit code that the problems of a run ask for."""
    return max((problem.kind for result in results for problem in result.problems), default=0)
