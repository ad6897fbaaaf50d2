"""`accumlint config`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from accumlint import config
from accumlint.cli import options, output
from accumlint.config import setting_keys
from accumlint.diagnostics.reporting.settings_toml import settings
from accumlint.diagnostics.reporting.terminal import Look


@click.command()
@click.argument(
    "path", default=".", type=click.Path(exists=True, resolve_path=True, path_type=Path)
)
@options.CONFIG
@options.ISOLATED
@click.option("--schema", is_flag=True, help="Print the JSON schema of the settings instead.")
@options.COLOR
def command(path: Path, configs: options.Configs, isolated: bool, schema: bool, look: Look) -> None:
    """Prints the settings for a file or folder, and where each comes from."""
    if schema:
        output.put([json.dumps(setting_keys.schema(), indent=2)])
        return
    held = config.settings(
        path if path.is_dir() else path.parent, options.settled(configs, isolated)
    )
    output.put(settings(held.all, look))
