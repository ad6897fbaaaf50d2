"""A notebook is one program: its findings name the cell, and where that stands in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from helpers import LOOP, ROOT, unmarked
from readers import notebook_sources

from accumlint.common.place import Place
from accumlint.diagnostics.results.report import Edit, Fix
from accumlint.files import notebook as notebooks

FIXTURES = ROOT / "fixtures"
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
    return {**PLAIN_CELL, "source": source}


MARKDOWN: dict[str, Any] = {
    "cell_type": "markdown",
    "id": "a0",
    "metadata": {},
    "source": ["loss.backward()"],
}
PLAIN_CELL: dict[str, Any] = {
    "cell_type": "code",
    "execution_count": None,
    "id": "a1",
    "metadata": {},
    "outputs": [],
}
# As editors mark it that know several languages in a notebook.
SQL = code("SELECT 1") | {"metadata": {"vscode": {"languageId": "sql"}}}

# Notebooks with one finding each: its cell and its line in the cell.
READ = {
    "one cell": (notebook(PLAIN), 1, FLAGGED + 3),
    "two cells": (notebook(HEAD, BODY), 2, FLAGGED),
    "markdown counts as a cell": (notebook(HEAD, MARKDOWN, BODY), 3, FLAGGED),
    "a source as one string": (notebook(HEAD, code(BODY)), 2, FLAGGED),
    "all on one line": (notebook(HEAD, MARKDOWN, code(BODY), indent=None), 3, FLAGGED),
    "a cell of another language": (notebook(HEAD, SQL, BODY), 3, FLAGGED),
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


# What fixing does with lines: adds one, adds the last, takes some out, moves some, changes one.
MENDED = (
    "acc201/bad_update_method",
    "acc204/bad_forgotten",
    "acc402/bad_top_of_modulo_loop",
    "acc403/bad_update_method",
    "acc405/bad_epoch_total",
)
PRINTED: dict[str, Any] = {
    "cell_type": "code",
    "execution_count": 3,
    "id": "a2",
    "metadata": {"tags": ["größe"], "b": 1, "a": 2},
    "outputs": [{"name": "stdout", "output_type": "stream", "text": ["loss 1\\u0065\n"]}],
    "source": ["%matplotlib inline\n", "print('loss.backward() \\n')"],
}


def one_string(source: str) -> dict[str, Any]:
    return code(source)


def many_strings(source: str) -> dict[str, Any]:
    return code(source.splitlines(keepends=True))


def unended(source: str) -> dict[str, Any]:
    return code(source.rstrip("\n").splitlines(keepends=True))


def carriage_returns(source: str) -> dict[str, Any]:
    return code(source.replace("\n", "\r\n").splitlines(keepends=True))


def as_notebook(source: str, shape: Any, indent: int | None) -> str:
    cells = [*map(shape, source.split("\n\n\n"))]
    cells = [cell | {"id": f"c{number}"} for number, cell in enumerate(cells)]
    return notebook(PRINTED, *cells, indent=indent) + "\n"


@pytest.mark.parametrize("name", MENDED)
@pytest.mark.parametrize(
    ("shape", "indent"),
    [(one_string, None), (many_strings, 1), (unended, None), (carriage_returns, 1)],
)
def test_fixes_change_the_source_only(
    run: Run, tmp_path: Path, name: str, shape: Any, indent: int | None
) -> None:
    before = unmarked((FIXTURES / f"{name}.py").read_text())
    after = unmarked((FIXTURES / f"{name}.fixed.py").read_text())
    file = tmp_path / "n.ipynb"
    file.write_text(as_notebook(before, shape, indent), newline="")
    run("check", "--fix", "--unsafe-fixes", "--select", name[:6])
    with file.open(newline="") as fixed:
        assert fixed.read() == as_notebook(after, shape, indent)
    cells = after.split("\n\n\n")
    assert notebook_sources(file)[1:] == ["".join(shape(cell)["source"]) for cell in cells]


def test_add_ignore_in_a_notebook(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "n.ipynb"
    for indent in (1, None):
        file.write_text(notebook(PRINTED, HEAD, BODY, indent=indent))
        ran = run("check", "--add-ignore=by hand")
        assert (ran.code, ran.err) == (0, "Ignored 1 finding in 1 file\n")
        silenced = BODY.replace("ward()", "ward()  # accumlint: ignore[ACC102] by hand")
        assert file.read_text() == notebook(PRINTED, HEAD, silenced, indent=indent)


def test_a_diff_is_one_of_cells(run: Run, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(notebook(HEAD, MARKDOWN, BODY))
    lines = run("check", "--diff", "--unsafe-fixes").out.splitlines()
    assert lines[:2] == ["--- n.ipynb:cell 3", "+++ n.ipynb:cell 3"]
    assert [line for line in lines[2:] if line[0] in "+-"] == [
        "-            loss.backward()",
        "+            (loss / accumulation_steps).backward()",
    ]


def test_edits_are_told_in_the_cell_and_in_the_file(run: Run, tmp_path: Path) -> None:
    text = notebook(HEAD, "x = 'größe \\n'\n" + BODY)
    (tmp_path / "n.ipynb").write_text(text)
    (finding,) = json.loads(run("check", "--output-format", "json").out)
    edit = finding["fix"]["edits"][0]
    assert (edit["location"]["row"], edit["content"][:1]) == (FLAGGED + 1, "(")
    sarif: Any = json.loads(run("check", "--output-format", "sarif").out)
    change: Any = sarif["runs"][0]["results"][0]["fixes"][0]["artifactChanges"][0]
    rows = text.split("\n")
    for replacement in reversed(change["replacements"]):
        region: dict[str, int] = replacement["deletedRegion"]
        assert region["startLine"] == region["endLine"]
        line, row = region["startLine"] - 1, rows[region["startLine"] - 1]
        before, behind = row[: region["startColumn"] - 1], row[region["endColumn"] - 1 :]
        rows[line] = before + replacement["insertedContent"]["text"] + behind
    run("check", "--fix", "--unsafe-fixes")
    assert (tmp_path / "n.ipynb").read_text() == "\n".join(rows)


@pytest.mark.parametrize(
    ("place", "possible"),
    [
        (Place(1, 1, 1, 1), True),
        (Place(1, 1, 2, 1), True),
        (Place(2, 1, 2, 1), False),  # in front of a magic
        (Place(1, 1, 3, 1), False),  # over a magic
        (Place(3, 1, 6, 1), False),  # over two cells
        (Place(5, 1, 6, 1), True),
    ],
)
def test_no_edit_touches_a_magic_or_two_cells(place: Place, possible: bool) -> None:
    book = notebooks.read(notebook("x = 1\n%time x\ny = 1", "z = 1").encode())
    assert book is not None
    fix = book.fix(Fix("safe", "", (Edit(place, 0, 0, ""),)))
    assert (fix is not None) == possible


def test_confirm_says_that_it_runs_no_notebooks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(notebook(PLAIN))
    ran = run("confirm", "n.ipynb:11")
    assert (ran.code, ran.err) == (
        2,
        "accumlint: n.ipynb: notebooks are not run; save this one as a script\n",
    )


def test_a_baseline_knows_notebooks(run: Run, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(notebook(HEAD, BODY))
    assert run("baseline", "write").out == "1 finding known in accumlint-baseline.json\n"
    (tmp_path / "n.ipynb").write_text(notebook(MARKDOWN, HEAD + "\nx = 1", "y = 2\n" + BODY))
    known = ("check", "--baseline", "accumlint-baseline.json")
    assert run(*known).code == 0
    again = BODY.replace("def train", "def again")
    (tmp_path / "n.ipynb").write_text(notebook(HEAD, BODY, again))
    assert run(*known).out.startswith(f"n.ipynb:cell 3:{FLAGGED}:13: ACC102 ")
