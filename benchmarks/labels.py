"""Measures any linter on the labelled loops of the public benchmark; `docs/benchmark.md` tells how.

    python benchmarks/labels.py --files FOLDER --clone DIR         fetches the labelled commits, writes their files
    python benchmarks/labels.py --files FOLDER --report FILE       scores a linter's SARIF, or accumlint's JSON
    python benchmarks/labels.py --files FOLDER --run accumlint     runs accumlint on the files and scores it

FOLDER/alone gets the labelled files, FOLDER/project the Python files of their commits as well. A linter is run on
either or both; its findings are told apart by the folder that they are in.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from checkouts import ALONE, PROJECT, write
from document import put
from labelled import LABELS, SPLITS, InputError, Sample, samples
from linted import Finding, parsed, read, rule_map
from scoring import Rules, Score, key, score

HOST = "https://github.com"
TITLES = {ALONE: "Each file alone", PROJECT: "Each file in its project"}
OPTIONS = shlex.split("check --isolated --no-cache --select ALL --exit-zero --output-format json")


def run(command: str, rows: Sequence[Sample], files: Path) -> Iterator[tuple[str, list[Finding]]]:
    """What accumlint finds in the labelled files, alone and in their projects."""
    sources = {loop.source for row in rows for loop in row.loops}
    folders = {source.folder for source in sources}
    for part in (ALONE, PROJECT):
        places = [files / part / source.folder / source.path for source in sources]
        asked = [str(place) for place in sorted(places) if place.is_file()]
        if not asked:
            # Given no file, accumlint checks the folder that it runs in.
            continue
        try:
            words = [*shlex.split(command), *OPTIONS, *asked]
            ran = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            raise InputError(f"{command}: {error.strerror}") from None
        # A file that it cannot read, or follow to the end, is told on stderr: the others are checked all the same.
        if ran.returncode and not ran.stdout.strip():
            told = ran.stderr.strip().splitlines() or ["it says nothing"]
            raise InputError(f"{command}: exit code {ran.returncode}: {told[-1]}")
        sys.stderr.write(ran.stderr)
        yield TITLES[part], parsed(ran.stdout, command, folders)


def reported(file: Path, rows: Sequence[Sample]) -> Iterator[tuple[str, list[Finding]]]:
    """The findings of a linter's report, by the part of the files that they are in."""
    folders = {loop.source.folder for row in rows for loop in row.loops}
    parts: defaultdict[str, list[Finding]] = defaultdict(list)
    for found in read(file, folders):
        parts[TITLES.get(found.part, str(file))].append(found)
    if not parts:
        yield f"{file}: no finding in a labelled commit", []
    yield from sorted(parts.items())


def totals(scores: Sequence[Score]) -> Iterator[str]:
    """The figures of each sample as a table in Markdown."""
    yield (
        "| sample | split | files | change gradients | all defects "
        "| right / debatable / wrong | precision | right loops silent |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in scores:
        count = row.counts
        files = len({loop.source for loop in row.sample.loops})
        findings = " / ".join(str(count[kind]) for kind in ("right", "debatable", "wrong"))
        cells = [
            row.sample.title,
            row.sample.split,
            str(files) if row.files == files else f"{row.files} of {files}",
            _share(count["gradients found"], count["gradients"]),
            _share(count["all found"], count["all"]),
            findings,
            _share(count["right"], count["right"] + count["wrong"]),
            f"{count['silent']} of {count['right loops']}",
        ]
        yield f"| {' | '.join(cells)} |"


def by_rule(scores: Sequence[Score], names: Mapping[str, str]) -> Iterator[str]:
    """What was found of the labelled defects of each rule, and what is wrong, as a table in Markdown."""
    yield f"| rule | {' | '.join(f'found, {split} | wrong, {split}' for split in SPLITS)} |"
    yield f"|{' --- |' * (1 + 2 * len(SPLITS))}"
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in scores:
        for code, count in row.by_rule.items():
            counts.setdefault((code, row.sample.split), Counter()).update(count)
    for code in sorted({code for code, _ in counts}):
        name = names.get(code, code)
        cells = [code if name == code else f"{code} {name}"]
        for split in SPLITS:
            count = counts.get((code, split), Counter[str]())
            labelled = count["labelled"]
            cells += [f"{count['found']} of {labelled}" if labelled else "-", str(count["wrong"])]
        yield f"| {' | '.join(cells)} |"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.2f})" if whole else "-"


def told(title: str, scores: Sequence[Score], show: bool) -> Iterator[str]:
    """The lines of one part of the result."""
    names = {
        key(each): each.name for row in scores for loop in row.sample.loops for each in loop.defects
    }
    yield from ("", f"## {title}", "", *totals(scores), "", *by_rule(scores, names))
    unmapped = sum((row.unmapped for row in scores), Counter[str]())
    if unmapped:
        rules = ", ".join(sorted(unmapped))
        yield f"\n{unmapped.total()} findings of rules that stand for none of the labels: {rules}"
    if show:
        for row in scores:
            yield from (f"missed: {line}" for line in row.missed)
            yield from (f"wrong: {line}" for line in row.wrong)


def measured(asked: argparse.Namespace) -> None:
    """Does what the command line asks for."""
    rows = samples(asked.labels)
    sources = {loop.source for row in rows for loop in row.loops}
    known = {code for row in rows for loop in row.loops for code in map(key, loop.defects)}
    rules: Rules = rule_map(asked.map, known) if asked.map else {}
    repositories: Path | None = asked.clone or asked.repos
    if repositories:
        host = asked.host if asked.clone else None
        for problem in write(sorted(sources), repositories, asked.files, host):
            print(f"not to be had: {problem}", file=sys.stderr)
    alone = asked.files / ALONE
    if not any((alone / source.folder / source.path).is_file() for source in sources):
        raise InputError(f"{asked.files}: none of the labelled files is here; --clone fetches them")
    parts: list[tuple[str, list[Finding]]] = []
    if asked.report:
        parts += reported(asked.report, rows)
    if asked.run:
        parts += run(asked.run, rows, asked.files)
    page: list[str] = []
    for title, found in parts:
        scores = [score(row, found, alone, rules) for row in rows]
        print(*told(title, scores, asked.show), sep="\n")
        page += [f"{title}:", "", *totals(scores), ""]
    if asked.write and page:
        put(asked.write, "benchmark", "\n".join(page))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--files", type=Path, required=True, metavar="FOLDER", help="the labelled files"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--clone", type=Path, metavar="DIR", help="fetch what is missing into DIR/OWNER/NAME"
    )
    where.add_argument(
        "--repos", type=Path, metavar="DIR", help="take the repositories DIR/OWNER/NAME as they are"
    )
    parser.add_argument("--host", default=HOST, help="where --clone fetches from (%(default)s)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--report", type=Path, metavar="FILE", help="SARIF 2.1.0, or accumlint's JSON"
    )
    what.add_argument("--run", metavar="ACCUMLINT", help="the command that runs accumlint")
    parser.add_argument(
        "--map",
        type=Path,
        metavar="FILE",
        help="TOML: the rules of the labels by those of the linter",
    )
    parser.add_argument(
        "--labels", type=Path, default=LABELS, metavar="DIR", help="other labels (%(default)s)"
    )
    parser.add_argument(
        "--show", action="store_true", help="list missed defects and wrong findings"
    )
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the figures between the marks of this page"
    )
    try:
        measured(parser.parse_args())
    except (InputError, OSError) as error:
        print(f"labels.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
