"""Switches off one heuristic on names at a time, and counts the findings that change in real code and in fixtures.

    python benchmarks/heuristics.py FOLDER…                  each pattern of accumlint/reading/names.py
    python benchmarks/heuristics.py --alternatives FOLDER…   each alternative of each pattern
    python benchmarks/heuristics.py --modules accumlint accumlint_rules -- FOLDER…

A heuristic is a regular expression at the top of a module, or one of its alternatives. All files are checked once, and
the script notes which texts each pattern matches. Then only the files are checked again where something matches by that
heuristic alone. `--record` keeps what the first pass notes, for the next run on the same code.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accumlint import check
from accumlint.config import Options
from accumlint.files.inputs import discovery
from accumlint.files.inputs.discovery import Target
from accumlint.reading import names

ROOT = Path(__file__).parents[1]
NEVER = "(?!)"


class Arguments(argparse.Namespace):
    paths: list[Path]
    modules: list[str]
    alternatives: bool
    only: str
    enough: int
    slow: float
    record: Path | None


@dataclass
class Noting:
    """A pattern that notes what it matches."""

    pattern: re.Pattern[str]
    matched: set[str] = field(default_factory=set[str])

    def search(self, text: str) -> re.Match[str] | None:
        return self._noted(text, self.pattern.search(text))

    def match(self, text: str) -> re.Match[str] | None:
        return self._noted(text, self.pattern.match(text))

    def fullmatch(self, text: str) -> re.Match[str] | None:
        return self._noted(text, self.pattern.fullmatch(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pattern, name)

    def _noted(self, text: str, found: re.Match[str] | None) -> re.Match[str] | None:
        if found is not None:
            self.matched.add(text)
        return found


@dataclass
class Place:
    """Where a pattern stands: a variable of a module, or a role of the table of roles."""

    module: Any
    name: str
    row: int = -1

    def __str__(self) -> str:
        role = f"[{getattr(self.module, self.name)[self.row][0]}]" if self.row >= 0 else ""
        return f"{self.module.__name__}.{self.name}{role}"

    def get(self) -> Any:
        value = getattr(self.module, self.name)
        return value[self.row][1] if self.row >= 0 else value

    def put(self, pattern: Any) -> None:
        if self.row < 0:
            setattr(self.module, self.name, pattern)
            return
        rows = list(getattr(self.module, self.name))
        rows[self.row] = (rows[self.row][0], pattern)
        setattr(self.module, self.name, tuple(rows))


@dataclass
class Checked:
    """What a file gave: its findings, the texts that each pattern matched, the seconds it took."""

    findings: list[tuple[str, int]]
    matched: dict[str, list[str]]
    seconds: float


def main() -> None:
    arguments = _arguments()
    places = {str(place): place for place in _places(arguments.modules)}
    files = [t for path in arguments.paths for t in _targets(path)]
    fixtures = _targets(ROOT / "fixtures")
    known = _first_pass(places, [*files, *fixtures], arguments.record)
    slow = {f for f, c in known.items() if c.seconds > arguments.slow}
    print(f"{len(files)} files, {len(fixtures)} fixtures; {len(slow)} too slow to be asked again")
    for name, place in sorted(places.items()):
        if arguments.only not in name:
            continue
        pattern = place.get()
        for what, reduced in _reduced(pattern, arguments.alternatives):
            counts: list[str] = []
            for kind, targets in (("files", files), ("fixtures", fixtures)):
                asked = [t for t in targets if _leans_on(known[t.file], name, pattern, reduced)]
                asked = [t for t in asked if t.file not in slow]
                place.put(reduced)
                changed = list(_changed(asked, known, arguments.enough))
                place.put(pattern)
                shown = " ".join(changed) if kind == "fixtures" or len(changed) < 4 else ""
                counts.append(f"{len(changed)} of {len(asked)} {kind} {shown}".rstrip())
            print(f"{name} | {what} | {' | '.join(counts)}", flush=True)


def _first_pass(
    places: dict[str, Place], targets: Sequence[Target], record: Path | None
) -> dict[str, Checked]:
    known: dict[str, Checked] = {}
    for row in record.read_text("utf-8").splitlines() if record and record.exists() else ():
        file, findings, matched, seconds = json.loads(row)
        known[file] = Checked([(c, n) for c, n in findings], matched, seconds)
    noting = {name: Noting(place.get()) for name, place in places.items()}
    for name, place in places.items():
        place.put(noting[name])
    for target in (t for t in targets if t.file not in known):
        for pattern in noting.values():
            pattern.matched = set()
        begun = time.process_time()
        findings = _findings(target)
        matched = {name: sorted(n.matched) for name, n in noting.items() if n.matched}
        known[target.file] = Checked(findings, matched, time.process_time() - begun)
        if record is not None:
            row = json.dumps([target.file, findings, matched, known[target.file].seconds])
            with record.open("a", encoding="utf-8") as kept:
                kept.write(f"{row}\n")
    for name, place in places.items():
        place.put(noting[name].pattern)
    return known


def _leans_on(checked: Checked, name: str, pattern: re.Pattern[str], reduced: Any) -> bool:
    texts = checked.matched.get(name, ())
    return any(not (reduced.search(t) if pattern.search(t) else reduced.match(t)) for t in texts)


def _changed(targets: Sequence[Target], known: dict[str, Checked], enough: int) -> Iterator[str]:
    for target in targets:
        before, after = set(known[target.file].findings), set(_findings(target))
        if before != after:
            enough -= 1
            told = [f"-{c}:{row}" for c, row in sorted(before - after)]
            told += [f"+{c}:{row}" for c, row in sorted(after - before)]
            yield f"{'/'.join(Path(target.file).parts[-2:])}({','.join(told)})"
        if enough == 0:
            return


def _findings(target: Target) -> list[tuple[str, int]]:
    """The findings of a file that is read anew, with all that it imports."""
    for module in (m for n, m in sys.modules.items() if n.startswith("accumlint")):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    checked = check.check([target])
    return sorted((r.code, r.mark.place.line) for c in checked for r in c.reports)


def _targets(path: Path) -> list[Target]:
    """The files of a folder, or those that a list names, one a line."""
    listed = path.read_text("utf-8").split() if path.suffix == ".txt" else [str(path)]
    options = Options(isolated=True, select=("ALL",), min_confidence="possible")
    return discovery.find(listed, options)[0]


def _places(modules: Sequence[str]) -> Iterator[Place]:
    for name in modules:
        module = importlib.import_module(name)
        found = [module]
        below = pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}.")
        found += [
            importlib.import_module(info.name)
            for info in below
            if not re.search(r"\.(confirming|runtime|server|cli)\b|__main__", info.name)
        ]
        for each in found:
            for variable, value in list(vars(each).items()):
                if isinstance(value, re.Pattern):
                    yield Place(each, variable)
                elif each is names and variable == "_ROLES":
                    yield from (Place(each, variable, row) for row in range(len(value)))


def _reduced(pattern: re.Pattern[str], by_alternative: bool) -> Iterator[tuple[str, Any]]:
    """The pattern without each of its alternatives; without all of them where not asked for each."""
    parts = list(_split(pattern.pattern)) if by_alternative else []
    if len(parts) < 2:
        yield "whole", re.compile(NEVER)
        return
    for i, part in enumerate(parts):
        rest = "|".join(parts[:i] + parts[i + 1 :])
        yield part, re.compile(rest, pattern.flags)


def _split(pattern: str) -> Iterator[str]:
    """The alternatives at the top of a pattern."""
    depth, begin, i, in_set = 0, 0, 0, False
    while i < len(pattern):
        letter = pattern[i]
        if letter == "\\":
            i += 1
        elif in_set:
            in_set = letter != "]"
        elif letter == "[":
            in_set = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and not depth:
            yield pattern[begin:i]
            begin = i + 1
        i += 1
    yield pattern[begin:]


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, help="folders, files, or lists (.txt) of them"
    )
    parser.add_argument("--modules", nargs="+", default=["accumlint.reading.names"])
    parser.add_argument("--alternatives", action="store_true", help="each alternative by itself")
    parser.add_argument("--only", default="", help="patterns whose name holds this")
    parser.add_argument("--enough", type=int, default=3, help="stop after so many changed files")
    parser.add_argument("--slow", type=float, default=4.0, help="seconds that leave a file out")
    parser.add_argument("--record", type=Path, help="where to keep what the first pass notes")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
