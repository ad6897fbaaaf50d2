"""A script of the user's own, as it is to be run: its file, its arguments, the project's modules that it imports."""

from __future__ import annotations

import ast
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accumlint.common.frozen import frozen
from accumlint.common.memo import Memory
from accumlint.common.problem import Misuse
from accumlint.confirming.import_roots import roots_of
from accumlint.confirming.passes import STEPS, Spec
from accumlint.confirming.plan import Plan
from accumlint.files.regular import contents
from accumlint.files.source import UndecodableSource, decode
from accumlint.reading.imports import Imports
from accumlint.rule import Symptom

# What a user may allow his script beyond what every run may do.
ALLOWABLE = ("writes", "network", "processes")
_STARTERS = {"python", "python3", "torchrun", "accelerate", "deepspeed"}
# As many of a project's modules are looked into.
_MOST = 300


@frozen
class Script:
    """A script and its arguments; `shown` is what the user typed for it, `folder` where it was typed.

    `package` is that of a module run with `-m`, "" for a file.
    """

    file: str
    shown: str
    arguments: tuple[str, ...]
    folder: str
    package: str = ""

    @property
    def command(self) -> str:
        """What is run, as it would be typed."""
        return shlex.join((*self.shown.split(), *self.arguments))


def found(words: Sequence[str], folder: str) -> Script:
    """The script that words behind `--` name, with its arguments.

    Raises:
        Misuse: where there is none.
    """
    if words[0] == "-m" and len(words) > 1:
        name = words[1]
        base = Path(folder, *name.split("."))
        for file in (base.with_suffix(".py"), base / "__main__.py"):
            if file.is_file():
                package = name if file.name == "__main__.py" else name.rpartition(".")[0]
                return Script(str(file), f"-m {name}", tuple(words[2:]), folder, package)
        raise Misuse(f"{name}: no such module in this folder")
    file = Path(folder, words[0])
    if file.is_file():
        return Script(os.path.abspath(file), words[0], tuple(words[1:]), folder)
    if words[0] in _STARTERS:
        raise Misuse(f"behind -- comes the script itself, without {words[0]}")
    raise Misuse(f"{words[0]}: no such script")


def modules(script: Script) -> list[str]:
    """The script and the files of its project that it imports, directly or not, as paths from its folder."""
    imports = Imports(Memory())
    waiting, files = [script.file], dict.fromkeys([script.file])
    while waiting and len(files) < _MOST:
        importer = waiting.pop(0)
        for path in _imported(importer):
            located = imports.located(path, importer)
            if located is not None and located[0] not in files:
                files[located[0]] = None
                waiting.append(located[0])
    return [_shown(file, script.folder) for file in files]


def _imported(file: str) -> Iterator[str]:
    """The dotted paths that a file imports, anywhere in it."""
    text = text_of(file)
    try:
        tree = ast.parse(text or "")
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            dot = "" if base.endswith(".") else "."
            yield from (f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")
            if node.module:
                yield base


def _shown(file: str, folder: str) -> str:
    beside = os.path.relpath(file, folder)
    return file if beside.startswith("..") else beside


def text_of(file: str) -> str | None:
    """The text of a source file, None where it cannot be read."""
    try:
        return decode(contents(file))
    except (OSError, UndecodableSource):
        return None


@frozen
class Run:
    """One pass over a script; plain values, sent as JSON.

    `texts` are the files that are given another text or say that lines of theirs are reached: `marks`; at the lines
    `averages`, which are among them, a running average of the weights moves. `number` is that of the pass in its
    launch, `first` that of the undisturbed pass of the same texts. `whole`: the end of an epoch is to be seen.
    """

    file: str
    shown: str
    arguments: tuple[str, ...]
    folder: str
    package: str
    roots: tuple[str, ...]
    texts: Mapping[str, str]
    marks: Mapping[str, tuple[int, ...]]
    averages: Mapping[str, tuple[int, ...]]
    totals: tuple[str, ...]
    graphs: bool
    whole: bool
    allowed: tuple[str, ...]
    number: int
    first: int
    passes: tuple[Spec, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def runs(
    script: Script, plans: Sequence[Plan], updates: int, allowed: tuple[str, ...], first: int
) -> list[Run]:
    """The passes that the plans of one arm need, numbered from `first`."""
    texts: dict[str, str] = {}
    marks: dict[str, set[int]] = {}
    averages: dict[str, set[int]] = {}
    for plan in plans:
        file = plan.report.file
        text = plan.job.text if plan.job else text_of(file)
        if text is not None:
            texts[file] = text
            if plan.arm == "found":
                marks.setdefault(file, set()).add(line_of(plan))
            if plan.job and plan.job.averages and plan.symptom is Symptom.AVERAGES:
                marks.setdefault(file, set()).update(plan.job.averages)
                averages.setdefault(file, set()).update(plan.job.averages)
    symptoms = list(dict.fromkeys(plan.symptom for plan in plans))
    totals = dict.fromkeys(name for plan in plans if plan.job for name in plan.job.totals)
    specs = list(dict.fromkeys(_specs(symptoms, updates)))
    folder = script.folder if script.package else os.path.dirname(script.file)
    return [
        Run(
            script.file, script.shown, script.arguments, script.folder, script.package,
            (folder, *roots_of(script.file)) if script.package else (folder,), texts,
            {file: tuple(sorted(lines)) for file, lines in marks.items()},
            {file: tuple(sorted(lines)) for file, lines in averages.items()}, tuple(totals),
            Symptom.HELD in symptoms, bool({Symptom.LEFT, Symptom.PARTIAL} & {*symptoms}),
            allowed, first + index, first, (spec,),
        )
        for index, spec in enumerate(specs)
    ]  # fmt: skip


def line_of(plan: Plan) -> int:
    """The line that has to be reached."""
    return plan.job.line if plan.job else plan.report.mark.place.line


# Per symptom a way to make the loop right and one to break it, by what the recorder does.
CONTROLS: Mapping[Symptom, tuple[str, str]] = {
    Symptom.GRADIENT: ("mend", "forget"),
    Symptom.SCALE: ("mend", "forget"),
    Symptom.WEIGHTS: ("even", "double"),
    Symptom.CLIPPED: ("pressure mend", "pressure forget"),
    Symptom.RAISES: ("unscaled", "keep"),
    Symptom.SPREAD: ("average", "part"),
    Symptom.REDUCTIONS: ("mute", "sync"),
    Symptom.LEFT: ("flush", "void"),
    Symptom.PARTIAL: ("mend", "forget"),
    Symptom.SIZES: ("regular", "hurry"),
    Symptom.STEPS: ("regular", "hurry"),
    Symptom.MISSED: ("regular", "forget"),
    Symptom.SCHEDULES: ("still", "schedule"),
    Symptom.HELD: ("free", "retain"),
    Symptom.AVERAGES: ("hurry", "seldom"),
    Symptom.SKIPPED: ("", "forget"),
}


def _specs(symptoms: Sequence[Symptom], updates: int) -> Iterator[Spec]:
    yield Spec("own", updates=updates)
    for symptom in symptoms:
        if symptom is Symptom.CLIPPED:
            yield Spec("own", updates=updates, pressure=True)
        if symptom is Symptom.STUCK:
            yield Spec("own", updates=updates, inject=STEPS - 1)
            yield Spec("own", updates=updates, inject=STEPS - 1, sabotage="void")
        if symptom is Symptom.SKIPPED:
            yield Spec("own", updates=updates, poison=STEPS - 1)
            yield Spec("own", updates=updates, poison=STEPS)
        for words in filter(None, CONTROLS.get(symptom, ())):
            yield Spec(
                "own", updates=updates, pressure="pressure" in words, unscaled=words == "unscaled",
                sabotage=words.removeprefix("pressure ") if words != "unscaled" else "",
            )  # fmt: skip
