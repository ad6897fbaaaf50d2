"""`accumlint clean`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from accumlint import config
from accumlint.cli import options
from accumlint.common.problem import Misuse
from accumlint.diagnostics.reporting.terminal import printable
from accumlint.files.folder import Folder
from accumlint.files.inputs import cache


@click.command()
@options.CONFIG
@options.ISOLATED
@options.CACHE_DIR
def command(configs: options.Configs, isolated: bool, cache_dir: Path | None) -> None:
    """Removes the cache."""
    settings = options.here(options.settled(configs, isolated))
    named = cache_dir or config.cache_dir(settings)
    if named is None or not os.path.lexists(named):
        return
    folder = Path(os.path.abspath(named))
    try:
        # A folder that was named by mistake is not touched, nor what others put into ours.
        if not _cleared(str(folder)):
            raise Misuse(
                f"{config.shown(folder)}: holds no {cache.TAG} of accumlint, so it is no cache"
            )
        folder.rmdir()
    except OSError as problem:
        raise Misuse(f"{config.shown(folder)}: cannot be removed: {problem.strerror}") from None
    click.echo(printable(f"Removed {config.shown(folder)}{os.sep}"))


def _cleared(path: str) -> bool:
    """Empties a cache; False for what is none, a link included."""
    if os.path.islink(path) or not os.path.isdir(path):
        return False
    with Folder(path) as folder:
        if not cache.is_ours(folder):
            return False
        cache.clear(folder)
        return True
