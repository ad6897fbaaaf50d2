"""`--add-ignore` writes comments that silence what is found, and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP

PLAIN = LOOP.replace("  # error: ACC102", "")

# The flagged statement before and after.
STATEMENTS = {
    "loss.backward()": "loss.backward()  # accumlint: ignore[ACC102]",
    "loss.backward()  # a remark": "loss.backward()  # a remark  # accumlint: ignore[ACC102]",
    "loss.backward()   ": "loss.backward()  # accumlint: ignore[ACC102]   ",
    "loss.backward(\n            )": "loss.backward(\n            )  # accumlint: ignore[ACC102]",
    "loss.backward(\\\n            )": "loss.backward(\\\n            )  # accumlint: ignore[ACC102]",
    "loss.backward('''\n'''[:0] or None)": "loss.backward('''\n'''[:0] or None)  # accumlint: ignore[ACC102]",
    "loss.backward()  # noqa: E501": "loss.backward()  # noqa: E501  # accumlint: ignore[ACC102]",
    "loss.backward()  # accumlint: ignore[ACC901] x": "loss.backward()  # accumlint: ignore[ACC901, ACC102] x",
    "loss.backward(); x = 1": "loss.backward(); x = 1  # accumlint: ignore[ACC102]",
}
ENCODINGS = {
    "as it is": ("", "utf-8"),
    "byte order mark": ("", "utf-8-sig"),
    "latin-1": ("# coding: latin-1\n# é\n", "latin-1"),
}


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_comment_stands_behind_the_statement(
    run: Run, tmp_path: Path, statement: str, end: str
) -> None:
    before = PLAIN.replace("loss.backward()", statement).replace("\n", end)
    after = PLAIN.replace("loss.backward()", STATEMENTS[statement]).replace("\n", end)
    (tmp_path / "train.py").write_bytes(before.encode())
    ran = run("check", "--add-ignore", "train.py")
    assert (ran.code, ran.err) == (0, "Ignored 1 finding in 1 file\n")
    assert (tmp_path / "train.py").read_bytes() == after.encode()
    again = run("check", "--add-ignore", "train.py")
    assert (again.code, again.err) == (0, "Ignored 0 findings in 0 files\n")


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_and_modes_stay(run: Run, tmp_path: Path, name: str) -> None:
    head, encoding = ENCODINGS[name]
    file = tmp_path / "train.py"
    file.write_bytes((head + PLAIN.rstrip("\n")).encode(encoding))
    file.chmod(0o750)
    assert run("check", "--add-ignore=the é divides").code == 0
    expected = "loss.backward()  # accumlint: ignore[ACC102] the é divides"
    assert file.read_bytes() == (head + PLAIN.rstrip("\n")).replace(
        "loss.backward()", expected
    ).encode(encoding)
    assert file.stat().st_mode & 0o777 == 0o750


REFUSED = [
    (["--add-ignore", "--fix"], "--add-ignore and --fix exclude each other"),
    (["--add-ignore", "--diff"], "--add-ignore and --diff exclude each other"),
    (["--add-ignore", "--diff-base", "HEAD"], "--add-ignore and --diff-base exclude each other"),
    (["--add-ignore", "-"], "--add-ignore and - exclude each other"),
    (["--add-ignore=one\ntwo"], "a reason is one line"),
    (["--add-ignore=梯度"], "train.py: the reason cannot be written in the file's encoding"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_what_cannot_be_written_is_refused(
    run: Run, tmp_path: Path, arguments: list[str], message: str
) -> None:
    source = ("# coding: latin-1\n" + PLAIN).encode()
    (tmp_path / "train.py").write_bytes(source)
    ran = run("check", *arguments)
    assert (ran.code, message in ran.err) == (2, True)
    assert (tmp_path / "train.py").read_bytes() == source


def test_several_rules_share_a_comment_and_remarks_get_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN + "x = 1  # accumlint: ignore\n")
    ran = run("check", "--add-ignore")
    assert (ran.code, "ACC901" in ran.out, f":{FLAGGED}:" in ran.out) == (1, True, False)


def test_a_file_that_changes_meanwhile_is_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: str, data: bytes, before: bytes) -> None:
        raise OSError("the file was changed meanwhile")

    (tmp_path / "train.py").write_text(PLAIN)
    monkeypatch.setattr("accumlint.diagnostics.fixing.ignore_comments.write", refuse)
    ran = run("check", "--add-ignore")
    assert ran.code == 2
    assert ran.err.startswith("train.py: cannot be written: the file was changed meanwhile\n")
