"""Changes rules or tracing in one place at a time, and counts the changes that the fixtures notice.

    python benchmarks/mutants.py rules/acc*.py
    python benchmarks/mutants.py --every 3 accumlint/tracing/control/guards.py accumlint/tracing/gradients/losses.py

A change is noticed when a fixture tells other findings than before, offers other fixes, or comes to no end. Only
fixtures that reach the changed line are asked, and at most `--most` of them: of a rule its own, then those without any
defect. A line that none reaches is counted by itself. Texts of messages are left as they are.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"

# What a fixture tells: rule, line and fixes of each finding.
Told = frozenset[tuple[str, int, str]]
Line = tuple[str, int]


class Arguments(argparse.Namespace):
    files: list[Path]
    every: int
    most: int
    seconds: int


@dataclass(frozen=True)
class Mutant:
    """A file with one place changed."""

    file: Path
    line: int
    change: str
    source: str


def main() -> None:
    arguments = _arguments()
    files = [f for path in arguments.files for f in _python(path.resolve())]
    subjects = [Subject(fixture) for fixture in sorted(FIXTURES.rglob("*.py"))]
    rooms = {file.name[:6] for file in files if file.name.startswith("acc")} | {"clean"}
    if all(file.name.startswith("acc") for file in files):
        subjects = [subject for subject in subjects if subject.room in rooms]
    importlib.import_module("accumlint.reading")
    for subject in subjects:
        subject.read()
    kept = frozenset(sys.modules)
    reach = _reach(subjects, {str(f) for f in files})
    total = [0, 0, 0]
    for file in files:
        mutants = list(_mutants(file))[:: arguments.every]
        counts = [0, 0, 0]
        for mutant in mutants:
            asked = _asked(subjects, reach.get((str(file), mutant.line), []), file)
            verdict = (
                2 if not asked else _survives(mutant, asked[: arguments.most], kept, arguments)
            )
            counts[verdict] += 1
            if verdict == 1:
                print(f"{file.relative_to(ROOT)}:{mutant.line}: {mutant.change}", flush=True)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        print(f"== {_row(str(file.relative_to(ROOT)), counts)}", flush=True)
    print(f"== {_row('all', total)}")


def _row(name: str, counts: Sequence[int]) -> str:
    killed, survived, unreached = counts
    known = f"{killed} noticed, {survived} not, {unreached} where no fixture comes"
    return f"{name}: {sum(counts)} changes, {known}"


class Subject:
    """A fixture, read once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.room = file.relative_to(FIXTURES).parts[0]
        self.program: Any = None
        self.project: Any = None
        self.before: Told = frozenset()
        # The tracing that it was followed by, and what was seen.
        self.followed: tuple[ModuleType | None, Any] = None, None

    def read(self) -> None:
        from accumlint import reading
        from accumlint.common.memo import Memory
        from accumlint.reading.project import Project

        self.project = Project(Memory())
        try:
            text = self.file.read_text(encoding="utf-8")
            self.program = reading.read(text, str(self.file), self.project)
        except (reading.UnreadableSource, UnicodeDecodeError):
            self.program = None

    def told(self) -> Told:
        """The findings that the fixture's test sees, of the rules as they are now."""
        from accumlint import tracing
        from accumlint.diagnostics import judge
        from accumlint.registry import packs
        from accumlint.rule import Confidence

        if self.program is None:
            return frozenset()
        if self.followed[0] is not tracing:
            self.followed = tracing, tracing.explore(self.program, self.project)
        exploration = self.followed[1]
        own = (self.room.upper(),) if self.room.startswith("acc") else ()
        rules = [rule for rule in packs.select(also=own).rules if not rule.meta]
        return frozenset(
            (
                finding.rule.code,
                self._line(finding.node),
                "".join(self._shown(fix) for fix in finding.fixes),
            )
            for finding in judge.judge(self.program, exploration, rules, {})
            if finding.confidence is not Confidence.POSSIBLE
        )

    def _line(self, node: Any) -> int:
        try:
            return self.program.place(node).line
        except LookupError:
            # In another file of the fixture.
            return 0

    def _shown(self, part: Any) -> str:
        """A fix as a text that is the same in another process."""
        if hasattr(part, "at"):
            return f"{type(part).__name__} at {self._line(part)}"
        if isinstance(part, tuple):
            # Of any type, as the part itself is.
            return "".join(map(self._shown, part))  # pyright: ignore[reportUnknownArgumentType]
        if is_dataclass(part) and not isinstance(part, type):
            inner = ",".join(self._shown(getattr(part, f.name)) for f in fields(part))
            return f"{type(part).__name__}({inner})"
        return str(part)


def _asked(subjects: Sequence[Subject], reaching: Sequence[int], file: Path) -> list[Subject]:
    """The fixtures that reach a line, those of the rule first."""
    found = [subjects[i] for i in reaching]
    return sorted(found, key=lambda s: (s.room != file.name[:6], s.room == "clean"))


def _reach(subjects: Sequence[Subject], files: set[str]) -> dict[Line, list[int]]:
    """For each line of some files the fixtures that run it."""
    found: dict[Line, list[int]] = {}
    for number, subject in enumerate(subjects):
        seen: set[Line] = set()
        subject.before = _watched(subject.told, files, seen)
        for line in seen:
            found.setdefault(line, []).append(number)
    return found


def _watched(call: Callable[[], Told], files: set[str], seen: set[Line]) -> Told:
    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            seen.add((_real(frame.f_code.co_filename), frame.f_lineno))
        return line

    def entered(frame: FrameType, event: str, _: object) -> Any:
        return line if _real(frame.f_code.co_filename) in files else None

    sys.settrace(entered)
    try:
        return call()
    finally:
        sys.settrace(None)


@cache
def _real(file: str) -> str:
    return os.path.realpath(file)


def _survives(
    mutant: Mutant, subjects: Sequence[Subject], kept: frozenset[str], arguments: Arguments
) -> int:
    """1 when every fixture tells what it told before, 0 otherwise. Each change has a process of its own."""
    child = os.fork()
    if child == 0:
        os._exit(_judged(mutant, subjects, kept, arguments.seconds))
    _, status = os.waitpid(child, 0)
    return int(status == 0)


def _judged(mutant: Mutant, subjects: Sequence[Subject], kept: frozenset[str], seconds: int) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    in_rules = mutant.file.parent == ROOT / "rules"
    for name in list(sys.modules):
        if name.startswith("accumlint_rules" if in_rules else "accumlint") and name not in kept:
            del sys.modules[name]
    if in_rules:
        from accumlint.registry import packs

        for cached in (packs.rule, packs.everything):
            cached.cache_clear()
    sys.meta_path.insert(0, _Changed(mutant))
    try:
        return int(any(subject.told() != subject.before for subject in subjects))
    except BaseException:  # noqa: BLE001 (whatever it breaks, it is noticed)
        return 1


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the changed source wherever its file is imported."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.rpartition(".")[2] != self.mutant.file.stem or not path:
            return None
        if Path(path[0]).resolve() != self.mutant.file.parent:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(self.mutant.file))

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.mutant.source, str(self.mutant.file), "exec"), module.__dict__)


def _python(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    # The two rules about ignores read no program.
    return [f for f in sorted(path.glob("*.py")) if "acc90" not in f.name]


_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_WORKED_OUT: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_CALLED = {"any": "all", "all": "any", "min": "max", "max": "min"}


def _mutants(file: Path) -> Iterator[Mutant]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {id(n) for told in _messages(tree) for n in ast.walk(told)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            twin = next(n for i, n in enumerate(ast.walk(changed)) if i == number)
            change(twin)
            line = getattr(node, "lineno", 0)
            old, new = ast.unparse(node), ast.unparse(twin)
            if line:
                shown = f"{_short(old)} -> {_short(new)}"
                yield Mutant(file, line, shown, ast.unparse(ast.fix_missing_locations(changed)))


def _short(code: str) -> str:
    first = " ".join(code.split())
    return first if len(first) <= 70 else first[:67] + "..."


def _messages(tree: ast.AST) -> Iterator[ast.AST]:
    """Texts that are only shown, types, and what stands outside of functions."""
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr() | ast.AnnAssign():
                yield node
            case ast.FunctionDef(args=args, returns=returns):
                yield args
                if returns is not None:
                    yield returns
            case ast.Module(body=body) | ast.ClassDef(body=body):
                yield from (s for s in body if not isinstance(s, ast.FunctionDef | ast.ClassDef))
            case _:
                pass


def _changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """The ways to change a node, each to be done to its twin in a copy of the tree."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            yield lambda twin: setattr(twin, "ops", [_COMPARED[type(op)]()])
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield lambda twin: setattr(twin, "op", other)
            for place in range(len(values)):
                yield lambda twin, place=place: twin.values.pop(place)
        case ast.BinOp(op=op) if type(op) in _WORKED_OUT:
            yield lambda twin: setattr(twin, "op", _WORKED_OUT[type(op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda twin: setattr(twin, "operand", ast.UnaryOp(ast.Not(), twin.operand))
        case ast.Constant(value=bool(value)):
            yield lambda twin: setattr(twin, "value", not value)
        case ast.Constant(value=int(value)):
            yield lambda twin: setattr(twin, "value", value + 1)
        case ast.If():
            yield lambda twin: setattr(twin, "test", ast.Constant(False))
        case ast.comprehension(ifs=[_, *_]):
            yield lambda twin: setattr(twin, "ifs", [])
        case ast.match_case(guard=ast.expr()):
            yield lambda twin: setattr(twin, "guard", None)
        case ast.Name(id=name) if name in _CALLED:
            yield lambda twin: setattr(twin, "id", _CALLED[name])
        case ast.Continue():
            yield lambda twin: setattr(twin, "__class__", ast.Pass)
        case ast.Expr(value=ast.Call()):
            yield lambda twin: setattr(twin, "value", ast.Constant(None))
        case _:
            pass


def _arguments() -> Arguments:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="files, or folders of files")
    parser.add_argument("--every", type=int, default=1, help="make every N-th change only")
    parser.add_argument("--most", type=int, default=40, help="fixtures for each change")
    parser.add_argument("--seconds", type=int, default=60, help="of the processor, a change")
    return parser.parse_args(namespace=Arguments())


if __name__ == "__main__":
    main()
