"""`accumlint clean`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from accumlint import cache, config
from accumlint.commands import options
from accumlint.problem import Misuse


@click.command()
@options.CONFIG
@options.ISOLATED
@options.CACHE_DIR
def command(configs: options.Configs, isolated: bool, cache_dir: Path | None) -> None:
    """Removes the cache."""
    settings = config.settings(Path.cwd(), options.settled(configs, isolated))
    folder = cache_dir or config.cache_dir(settings)
    if not folder.exists():
        return
    # A folder that was named by mistake is not touched, nor what others put into ours.
    if not (folder / cache.TAG).is_file():
        raise Misuse(f"{config.shown(folder)}: holds no {cache.TAG}, so it is no cache")
    try:
        for file in (*folder.glob("*.json"), folder / ".gitignore", folder / cache.TAG):
            file.unlink(missing_ok=True)
        folder.rmdir()
    except OSError as problem:
        raise Misuse(f"{config.shown(folder)}: cannot be removed: {problem.strerror}") from None
    click.echo(f"Removed {config.shown(folder)}{os.sep}")
