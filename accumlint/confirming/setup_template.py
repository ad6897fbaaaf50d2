"""Writes a set-up file to complete: the missing names, their roles, and the lines that read them."""

from __future__ import annotations

import ast
import json
import textwrap
from collections.abc import Mapping

from accumlint.reading import names

# Descriptions of the object to provide, by role.
_ROLES = {
    "model": "a small torch.nn.Module, of some thousand parameters",
    "criterion": "a function that gives the loss",
    "loader": "a list of micro-batches, of which the loop takes one at a time",
    "optimizer": "an optimizer over the parameters of a model that is given here too",
}
# The width of a line in the file without indentation; longer source lines are cut.
_WIDTH, _LONG = 92, 80


def written(wanted: Mapping[str, int], roles: Mapping[str, str], source: str, reason: str) -> str:
    """The file with the missing names, their lines (0 for unknown) and the `reason`; "" for no names."""
    if not wanted:
        return ""
    without = f"Without them: {reason}".replace('"', "'").replace("\\", "/")
    lines = [
        '"""What `accumlint confirm` cannot make up: put objects of your own in the places of `...`.',
        "",
        "`setup` is called for every run of the loop, so that each begins with fresh objects."
        " What stays `...` is made up.",
        "",
        *textwrap.wrap(without, 110),
        '"""',
        "",
        "import torch",
        "",
        "",
        "def setup(rank, world, device):",
        "    return {",
    ]
    for name, line in wanted.items():
        parts = (_ROLES.get(role_of(name, roles)), _read(name, line, source))
        meant = "; ".join(filter(None, parts)) or "whatever the loop needs"
        lines += [f"        # {part}" for part in textwrap.wrap(meant, _WIDTH)]
        lines.append(f"        {json.dumps(name)}: ...,")
    return "\n".join((*lines, "    }", ""))


def role_of(name: str, roles: Mapping[str, str]) -> str:
    """The role of an object to provide, "" for none."""
    owner, _, last = name.rpartition(".")
    # A dotted name that ends in "loss" computes a loss.
    usual = "criterion" if owner and last.lower().endswith("loss") else ""
    return roles.get(name) or names.role_of(last) or usual


def _read(name: str, line: int, source: str) -> str:
    """The line that reads a name: in the statement at a line if it is there, else the first one."""
    # Imported names are read without their package.
    parts = name.split(".")
    known = {".".join(parts[i:]) for i in range(len(parts))}
    uses = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) in known
    ]
    number = min([use for use in uses if line <= use <= line + 10] or uses, default=line)
    if not number:
        return ""
    text = source.splitlines()[number - 1].strip()
    return f"read at line {number}: {text if len(text) <= _LONG else text[:_LONG] + '…'}"
