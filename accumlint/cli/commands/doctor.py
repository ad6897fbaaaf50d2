"""`accumlint doctor`."""

from __future__ import annotations

import ast
import platform
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import click

from accumlint import __version__, check, config
from accumlint.cli import options, output
from accumlint.config import Settings
from accumlint.diagnostics.reporting import summary
from accumlint.diagnostics.reporting.phrases import count
from accumlint.diagnostics.reporting.terminal import Look, printable, printable_path
from accumlint.diagnostics.results.report import Checked
from accumlint.files.inputs.discovery import Target, find
from accumlint.files.regular import contents
from accumlint.registry import packs

# What each part needs: the package, the part, and what installs it where it is missing.
_NEEDED = (
    ("libcst", "check", ""),
    ("click", "every command", ""),
    ("pathspec", "check", ""),
    ("torch", "confirm, run", "accumlint[confirm]"),
    ("pygls", "server", "accumlint[lsp]"),
    ("watchfiles", "check --watch", "accumlint[watch]"),
)
_FRAMEWORKS = (
    "accelerate", "deepspeed", "lightning", "pytorch-lightning", "peft", "transformers", "trl", "torchtune",
)  # fmt: skip


@click.command()
@click.argument("paths", nargs=-1)
@options.CONFIG
@options.ISOLATED
@options.CACHE_DIR
@options.COLOR
def command(
    paths: tuple[str, ...],
    configs: options.Configs,
    isolated: bool,
    cache_dir: Path | None,
    look: Look,
) -> int:
    """Says what is installed, which settings hold, what `confirm` is protected by, and how far files are read.

    With PATHS, their training loops are read, and the packages are listed that they import and that are not installed
    here. Nothing of them is executed, and no cache is used. Copy the output into a report of a bug.

    Exit code: 0 said, 2 wrong usage, settings or input.
    """
    chosen = options.settled(configs, isolated)
    held = options.here(chosen)
    output.put(_installation())
    output.put(_titled("Packages", _packages(), look))
    output.put(_titled("Rules", _rules(held), look))
    output.put(_titled("Settings of the current folder", _settings(held), look))
    output.put(_titled("Cache", _cache(cache_dir or config.cache_dir(held)), look))
    output.put(_titled("Sandbox of `accumlint confirm`", _sandbox(), look))
    if not paths:
        return 0
    targets, problems = find(paths, chosen)
    results = tuple(check.check(targets))
    problems = [*problems, *(p for result in results for p in result.problems)]
    output.put(_titled("Read", _read(targets, results), look))
    output.put(
        _titled("Imported, neither installed nor in the project", _missing(targets, results), look)
    )
    for problem in problems:
        output.tell(problem)
    return max((problem.kind for problem in problems), default=0)


def _titled(title: str, lines: Iterable[str], look: Look) -> Iterator[str]:
    yield ""
    yield look.paint(title, "bold")
    yield from (f"  {line}" for line in lines)


def _installation() -> Iterator[str]:
    yield f"accumlint {__version__}, rules {packs.version()}"
    implementation = platform.python_implementation()
    yield f"{implementation} {platform.python_version()} on {platform.system()} {platform.machine()}"


def _version(package: str) -> str:
    """The installed version of a package, "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _packages() -> Iterator[str]:
    for package, part, extra in _NEEDED:
        mend = f"; install {extra}" if extra else ""
        told = _version(package) or f"not installed{mend}"
        yield f"{package:<18}{told} ({part})"
    for package in _FRAMEWORKS:
        if found := _version(package):
            yield f"{package:<18}{found}"


def _rules(held: Settings) -> Iterator[str]:
    """The packs with the numbers of their rules."""
    by_pack = Counter(entry.module.rpartition(".")[0] for entry in packs.catalogue())
    for package, rules in by_pack.items():
        yield f"{printable(packs.added_folder(package) or package)}: {count(rules, 'rule')}"
    if held.ignore:
        yield f"ignored by the settings: {printable(', '.join(held.ignore))}"


def _settings(held: Settings) -> Iterator[str]:
    yield from (printable_path(config.shown(file)) for file in held.files)
    if not held.files:
        yield "none: the defaults hold"


def _cache(folder: Path | None) -> Iterator[str]:
    if folder is None:
        yield "none: there is no home folder"
        return
    sizes = (
        [file.stat().st_size for file in folder.glob("*") if file.is_file()]
        if folder.is_dir()
        else []
    )
    yield f"{printable_path(str(folder))}: {count(len(sizes), 'file')}, {sum(sizes) / 1e6:.1f} MB"


def _sandbox() -> Iterator[str]:
    """What holds a run on this machine, and what does not."""
    from accumlint.confirming import sandbox

    has = sandbox.available()
    parts = (
        (f"Landlock {has.landlock}", has.landlock),
        ("seccomp", has.seccomp),
        ("bubblewrap", has.bubblewrap),
        ("namespaces", has.namespaces),
    )
    yield ", ".join(name for name, there in parts if there) or "nothing"
    for line in sandbox.unprotected(has, sandbox.Run(gpu=sandbox.has_gpu())):
        yield f"not protected: {line}"


def _read(targets: Sequence[Target], results: Sequence[Checked]) -> Iterator[str]:
    """How far the training loops of files were read, and the first backward calls that were not read whole."""
    training = sum(bool(result.backwards) for result in results)
    yield f"{count(len(targets), 'file')}, {training} with a training loop"
    if training:
        yield from summary.read(results)
        yield from summary.partly_read(results, Look())


def _missing(targets: Sequence[Target], results: Sequence[Checked]) -> Iterator[str]:
    """The packages that files with a training loop import, and that `confirm` and `run` would miss here."""
    places: dict[str, str] = {}
    for target, result in zip(targets, results, strict=True):
        if not result.backwards or target.stdin or target.is_notebook:
            continue
        for name, line in _imports(target):
            if name not in places and not _is_there(name, target.file):
                places[name] = f"{printable_path(target.shown)}:{line}"
    for name, place in sorted(places.items()):
        yield f"{printable(name)} ({place})"
    if not places:
        yield "none"


def _imports(target: Target) -> Iterator[tuple[str, int]]:
    """The outermost names of the modules that a file imports absolutely, with their lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(contents(target.file))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno


def _is_there(name: str, file: str) -> bool:
    """True for a module that is installed, is Python's, or lies beside the file or in a folder above it."""
    if name in sys.stdlib_module_names:
        return True
    for folder in Path(file).parents:
        if (folder / name).is_dir() or (folder / f"{name}.py").is_file():
            return True
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False
