"""A notebook is one program: its findings name the cell, and where that stands in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from helpers import LOOP

PLAIN = LOOP.replace("  # error: ACC102", "")
HEAD, BODY = PLAIN.split("\n\n\n")
FLAGGED = 1 + BODY[: BODY.index("loss.backward")].count("\n")


def notebook(*cells: str | dict[str, Any], indent: int | None = 1, **metadata: Any) -> str:
    """A notebook with these code cells, the source of each as a list of lines."""
    held = [
        cell if isinstance(cell, dict) else code(cell.splitlines(keepends=True)) for cell in cells
    ]
    document = {"cells": held, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=indent, ensure_ascii=False)


def code(source: object) -> dict[str, Any]:
    return {"cell_type": "code", "id": "a1", "metadata": {}, "outputs": [], "source": source}


MARKDOWN: dict[str, Any] = {
    "cell_type": "markdown",
    "id": "a0",
    "metadata": {},
    "source": ["loss.backward()"],
}

# Notebooks with one finding each: its cell and its line in the cell.
READ = {
    "one cell": (notebook(PLAIN), 1, FLAGGED + 3),
    "two cells": (notebook(HEAD, BODY), 2, FLAGGED),
    "markdown counts as a cell": (notebook(HEAD, MARKDOWN, BODY), 3, FLAGGED),
    "a source as one string": (notebook(HEAD, code(BODY)), 2, FLAGGED),
    "all on one line": (notebook(HEAD, MARKDOWN, code(BODY), indent=None), 3, FLAGGED),
    "an empty cell": (notebook(HEAD, "", BODY), 3, FLAGGED),
    "a source of no lines": (notebook(HEAD, code([]), BODY), 3, FLAGGED),
    "escapes before": (notebook(HEAD, 'x = "\\"\t\\\\ 梯度"\n' + BODY), 2, FLAGGED + 1),
    "wide escapes": (
        json.dumps(json.loads(notebook(HEAD, f"'😀'; x = 1\n{BODY}"))),
        2,
        FLAGGED + 1,
    ),
    "CRLF in the source": (notebook(HEAD, code(BODY.replace("\n", "\r\n"))), 2, FLAGGED),
    "CRLF in the file": (notebook(HEAD, BODY).replace("\n", "\r\n"), 2, FLAGGED),
    "byte order mark": ("\ufeff" + notebook(HEAD, BODY), 2, FLAGGED),
    "line magic": (notebook("%matplotlib inline\n" + HEAD, BODY), 2, FLAGGED),
    "shell": (notebook("!pip install \\\n  torch\n" + HEAD, BODY), 2, FLAGGED),
    "assigned shell": (notebook(HEAD + "\nfiles = !ls\nx, y = %who_ls", BODY), 2, FLAGGED),
    "magic in a block": (notebook(HEAD, "for x in []:\n    %time x\n" + BODY), 2, FLAGGED + 2),
    "help": (notebook("torch?\n?torch\ntorch.nn??\n" + HEAD, BODY), 2, FLAGGED),
    "modulo is no magic": (notebook(HEAD, "x = (5\n    % 3)\n" + BODY), 2, FLAGGED + 2),
    "another language's cell": (notebook(HEAD, "%%bash\nif [ x ]; then", BODY), 3, FLAGGED),
    "a timed cell": (notebook(HEAD, "%%time\n" + BODY), 2, FLAGGED + 1),
    "a named kernel": (notebook(PLAIN, language_info={"name": "python"}), 1, FLAGGED + 3),
    "no id": (notebook(PLAIN).replace('"id": "a1",', ""), 1, FLAGGED + 3),
}
REFUSED = {
    "no JSON": ("{ backward(", "is no notebook: "),
    "a list": ('["backward("]', "is no notebook that can be read: it has no cells"),
    "cells of another kind": ('{"cells": "backward("}', "it has no cells"),
    "format 3": ('{"worksheets": ["backward("]}', "its format is older than 4"),
    "a cell without source": (
        '{"cells": [{"cell_type": "code", "x": "backward("}]}',
        "cell 1 has no",
    ),
    "a source of numbers": (
        '{"cells": [{"cell_type": "code", "source": ["backward(", 1]}]}',
        "cell 1",
    ),
    "a syntax error": (notebook(HEAD, "def (:\n" + BODY), "syntax error: "),
    "deep nesting": ('{"cells": ' + "[" * 100_000 + '"backward("', "is no notebook: its JSON"),
    "not UTF-8": ('{"backward(": "\udcff"}', "is no notebook: it is not UTF-8"),
}


@pytest.mark.parametrize("name", READ)
def test_a_finding_stands_in_its_cell_and_in_the_file(run: Run, tmp_path: Path, name: str) -> None:
    text, cell, line = READ[name]
    (tmp_path / "n.ipynb").write_bytes(text.encode())
    ran = run("check")
    assert ran.err == ""
    assert ran.out.startswith(f"n.ipynb:cell {cell}:{line}:13: ACC102 ")
    full = run("check", "--output-format", "full").out
    assert f"{line} │             loss.backward()" in full
    sarif: Any = json.loads(run("check", "--output-format", "sarif").out)
    region: dict[str, int] = sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"][
        "region"
    ]
    row = text.removeprefix("\ufeff").split("\n")[region["startLine"] - 1]
    assert row[region["startColumn"] - 1 : region["endColumn"] - 1] == "loss.backward()"


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_notebook_is_told_and_the_run_goes_on(run: Run, tmp_path: Path, name: str) -> None:
    text, message = REFUSED[name]
    (tmp_path / "broken.ipynb").write_text(text, encoding="utf-8", errors="surrogateescape")
    (tmp_path / "n.ipynb").write_text(notebook(PLAIN))
    ran = run("check")
    assert ran.err.startswith("broken.ipynb:")
    assert (message in ran.err, len(ran.err.splitlines()), ran.code) == (True, 1, 2)
    assert ran.out.startswith("n.ipynb:cell 1:")


def test_a_syntax_error_is_placed_in_the_file(run: Run, tmp_path: Path) -> None:
    text = notebook(HEAD, BODY, "def (:\n")
    (tmp_path / "n.ipynb").write_text(text)
    line = 1 + text[: text.index("def (:")].count("\n")
    assert run("check").err.startswith(f"n.ipynb:{line}: syntax error")


@pytest.mark.parametrize(
    "text",
    [
        notebook(BODY, language_info={"name": "R"}),
        notebook(BODY, kernelspec={"language": "julia"}),
        notebook(MARKDOWN),
        notebook("%%bash\nloss.backward()"),
        notebook(),
    ],
)
def test_what_is_no_python_is_clean(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "n.ipynb").write_text(text)
    ran = run("check")
    assert (ran.code, ran.err) == (0, "")


def test_ignores_hold_for_their_cell(run: Run, tmp_path: Path) -> None:
    silenced = BODY.replace("loss.backward()", "loss.backward()  # accumlint: ignore[ACC102]")
    (tmp_path / "n.ipynb").write_text(notebook(HEAD, silenced))
    assert run("check").code == 0
    (tmp_path / "n.ipynb").write_text(notebook(HEAD, BODY + "# accumlint: ignore", "x = 1"))
    assert "n.ipynb:cell 2:10:3: ACC901" in run("check").out


def test_a_notebook_from_stdin(run: Run) -> None:
    ran = run("check", "-", "--stdin-filename", "n.ipynb", stdin=notebook(PLAIN).encode())
    assert ran.out.startswith("n.ipynb:cell 1:")


@pytest.mark.parametrize("option", ["--fix", "--add-ignore"])
def test_a_notebook_is_never_rewritten(run: Run, tmp_path: Path, option: str) -> None:
    text = notebook(HEAD, BODY)
    (tmp_path / "n.ipynb").write_text(text)
    run("check", option)
    assert (tmp_path / "n.ipynb").read_text() == text
