"""`accumlint check --watch`: the same check, again and again as files change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

import click

from accumlint.common.problem import Misuse
from accumlint.config import FILES
from accumlint.files.inputs.discovery import Target

# The command, with nothing imported from the current folder: it is the tree that is checked.
RUN = "import sys; sys.path[:] = filter(None, sys.path); from accumlint.cli import main; main()"
_SUFFIXES = (".py", ".ipynb", ".gitignore", *FILES)


def watch(arguments: Sequence[str], paths: Iterable[str], targets: Iterable[Target]) -> int:
    """Checks at once and after each change below the paths, or of a settings file or a baseline, until interrupted.

    Each check is a process of its own, so that nothing it once read is old.
    """
    try:
        import watchfiles
    except ImportError:
        raise Misuse("--watch needs watchfiles: pip install watchfiles") from None
    read = _read(targets)
    usual = watchfiles.DefaultFilter()

    def counts(change: watchfiles.Change, file: str) -> bool:
        return file in read or (file.endswith(_SUFFIXES) and usual(change, file))

    changes = watchfiles.watch(
        *_folders(paths), *read, watch_filter=counts, rust_timeout=100, yield_on_timeout=True
    )
    # From here on no change is missed, not even one while files are checked.
    next(changes)
    command = [sys.executable, "-c", RUN, "check", *arguments]
    while True:
        # Only a terminal is cleared: a pipe gets one check after the other.
        click.clear()
        print("accumlint: checking", file=sys.stderr)
        subprocess.run(command, check=False)
        print("Watching for changes; Ctrl+C ends it", file=sys.stderr)
        next(filter(None, changes))


def _folders(paths: Iterable[str]) -> dict[str, None]:
    """The folders to watch; a file's own folder stands for it, since editors put a new file in the old one's place."""
    full = (os.path.abspath(path) for path in paths)
    return dict.fromkeys(path if os.path.isdir(path) else os.path.dirname(path) for path in full)


def _read(targets: Iterable[Target]) -> list[str]:
    """The settings files and baselines that hold for the targets."""
    settings = {target.settings for target in targets}
    files = (file for held in settings for file in (*held.files, held.baseline))
    return sorted({str(file) for file in files if file and file.exists()})
