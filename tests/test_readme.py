"""The README shows what the command prints, and CI runs the README's test command.

`python tests/test_readme.py` rewrites what is shown as printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_SHOWN = re.compile(
    r"(?P<open>```text\n\$ accumlint (?P<arguments>[^\n]*)\n)(?P<printed>.*?)```", re.DOTALL
)


def printed(arguments: str) -> str:
    """What the command prints in the project's folder, as on a terminal without colours."""
    command = [sys.executable, "-X", "utf8", "-m", "accumlint", *arguments.split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout.decode()


def shown() -> Iterator[tuple[str, str]]:
    """The arguments of each command that the README shows, with its output there."""
    for match in _SHOWN.finditer(README.read_text(encoding="utf-8")):
        yield match["arguments"], match["printed"]


def test_the_readme_shows_what_is_printed() -> None:
    commands = dict(shown())
    assert len(commands) >= 2
    assert {arguments: printed(arguments) for arguments in commands} == commands


def test_ci_runs_the_readme_s_test_command() -> None:
    block = re.compile(r"```sh\n(.*pytest)\n```")
    (command,) = block.findall(README.read_text(encoding="utf-8"))
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def rewrite() -> None:
    text = README.read_text(encoding="utf-8")
    new = _SHOWN.sub(lambda m: f"{m['open']}{printed(m['arguments'])}```", text)
    README.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
