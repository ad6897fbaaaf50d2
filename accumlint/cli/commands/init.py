"""`accumlint init`."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from accumlint import config
from accumlint.common.problem import Misuse
from accumlint.files.atomic import put, write
from accumlint.files.regular import SETTINGS, contents

# All commented out: what is usual needs no saying, and what may be said is at hand.
TEMPLATE = """\
# Settings of accumlint. `accumlint config` shows those that hold and where they come from.
# select = ["ACC1", "ACC5"]                # only these: beginnings of codes, codes or names
# ignore = ["ACC3"]                        # `accumlint rules` lists them
# extend-exclude = ["legacy/"]             # as in .gitignore
# min-confidence = "likely"                # or "certain", or "possible"
# baseline = "accumlint-baseline.json"     # findings that `accumlint baseline write` made known
"""
HOOK = """\
- repo: local
  hooks:
    - id: accumlint
      name: accumlint
      entry: accumlint check --force-exclude
      language: system
      types_or: [python, jupyter]
      require_serial: true
"""
HOOKS = ".pre-commit-config.yaml"
_TOP_LEVEL = re.compile(r"^([\w-]+):", re.MULTILINE)
_REPO = re.compile(r"^( *)- repo:", re.MULTILINE)


@click.command()
@click.option("--pre-commit", is_flag=True, help=f"Add a hook to {HOOKS}, too.")
def command(pre_commit: bool) -> None:
    """Writes settings to start from into the current folder, and changes nothing that is there.

    They go to the end of pyproject.toml, or else into an accumlint.toml. The hook goes to the root of the git
    repository around the folder, since pre-commit reads no other file.
    """
    folder = Path.cwd()
    try:
        click.echo(_settle(folder))
        if pre_commit:
            click.echo(_hook(_repository(folder) / HOOKS))
    except OSError as problem:
        raise Misuse(f"cannot write here: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise Misuse(f"cannot write here: {problem}") from None
    click.echo("Next: accumlint check")


def _settle(folder: Path) -> str:
    """Makes sure that a folder has settings, and says how that came."""
    found = next((folder / name for name in config.FILES if config.is_settled(folder / name)), None)
    if found:
        return f"{found.name} has settings already, and stays as it is"
    project = folder / "pyproject.toml"
    table = f"\n[tool.accumlint]\n{TEMPLATE}"
    if os.path.lexists(project) and config.is_toml(f"{_text(project)}\n{table}"):
        _append(project, table)
        return "Added [tool.accumlint] to pyproject.toml"
    own = folder / "accumlint.toml"
    if os.path.lexists(own):
        _text(own)
    put(str(own), TEMPLATE.encode())
    return "Wrote accumlint.toml"


def _repository(folder: Path) -> Path:
    """The root of the git repository around a folder; the folder itself where there is none."""
    homes = (home for home in (folder, *folder.parents) if os.path.lexists(home / ".git"))
    return next(homes, folder)


def _hook(file: Path) -> str:
    """Makes sure that pre-commit runs accumlint, and says how that came."""
    shown = os.path.relpath(file)
    if not os.path.lexists(file):
        put(str(file), f"repos:\n{_indented(HOOK, '  ')}".encode())
        return f"Wrote {shown}; `pre-commit install` turns it on"
    text = _text(file)
    if re.search(r"id: *accumlint\b", text):
        return f"{shown} has the hook already, and stays as it is"
    repo = _REPO.search(text)
    if repo is None or _TOP_LEVEL.findall(text)[-1:] != ["repos"]:
        click.echo(HOOK)
        raise Misuse(f"{shown} does not end with its repos; put the lines above among them")
    _append(file, _indented(HOOK, repo[1]))
    return f"Added the hook to {shown}"


def _text(file: Path) -> str:
    """The text of a file that is to be changed: a link may lead anywhere."""
    return contents(file, SETTINGS, follow=False).decode()


def _append(file: Path, text: str) -> None:
    """Adds lines to the end of a file, which end as its own do."""
    before = contents(file, SETTINGS, follow=False)
    newline = b"\r\n" if b"\r\n" in before else b"\n"
    missing = b"" if not before or before.endswith(b"\n") else newline
    write(str(file), before + missing + text.encode().replace(b"\n", newline), before)


def _indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}" for line in text.splitlines(keepends=True))
