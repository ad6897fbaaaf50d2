"""A comment silences the statement it stands at, for the rules that it names, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

from accumlint.check import check_bytes
from accumlint.config import Settings
from accumlint.diagnostics import suppression
from accumlint.files.inputs.discovery import Target

CODE, NAME = "ACC102", "loss-not-divided"

# The finding is on the line that holds `loss.backward`; True where it is silenced.
CASES = {
    "loss.backward()": False,
    "loss.backward()  # a remark": False,
    "loss.backward()  # accumlint: ignore[ACC102]": True,
    "loss.backward()  # accumlint: ignore[acc102]": True,
    "loss.backward()  # accumlint: ignore[loss-not-divided]": True,
    "loss.backward()  # accumlint: ignore[ACC201, ACC102] the criterion divides": True,
    "loss.backward()  # accumlint:ignore [ ACC102 ]": True,
    "loss.backward()  # accumlint: ignore": True,
    "loss.backward()  # accumlint: ignore, the criterion divides": True,
    "loss.backward()  # type: ignore  # accumlint: ignore[ACC102]": True,
    "loss.backward()  # accumlint: ignore[ACC201]": False,
    "loss.backward()  # accumlint: ignore[ACC1]": False,
    "loss.backward()  # accumlint: ignore[]": False,
    "loss.backward()  # accumlint: ignore[ACC201": False,
    "loss.backward()  # accumlint: ignored": False,
    "loss.backward()  # accumlint: ignore-next": False,
    "loss.backward()  # accumlint: ignore-file": False,
    "loss.backward('# accumlint: ignore')": False,
    "loss.backward()  # noqa": True,
    "loss.backward()  # NOQA": True,
    "loss.backward()  # noqa: ACC102": True,
    "loss.backward()  # noqa: E501, ACC102": True,
    "loss.backward()  # noqa:E501,acc102 the criterion divides": True,
    "loss.backward()  # noqa: E501": False,
    "loss.backward()  # noqa: the criterion divides": False,
    "loss.backward()  # noqable": False,
    # On a line of its own, for the statement below.
    "# accumlint: ignore[ACC102]\nloss.backward()": True,
    "# accumlint: ignore\nloss.backward()": True,
    "# accumlint: ignore[ACC102]\n# accumlint: ignore[ACC201]\nloss.backward()": True,
    "# accumlint: ignore[ACC102]\n# the criterion divides\nloss.backward()": True,
    "# accumlint: ignore[ACC102]\nx = 1\nloss.backward()": False,
    "# accumlint: ignore[ACC102]\n\nloss.backward()": False,
    "x = 1  # accumlint: ignore[ACC102]\nloss.backward()": False,
    "loss.backward()\n# accumlint: ignore[ACC102]": False,
    "# noqa: ACC102\nloss.backward()": False,
    # Statements over several lines: on any of them, or above the first.
    "loss.backward(\n    x,\n)  # accumlint: ignore[ACC102]": True,
    "(\n    loss.backward()\n)  # noqa: ACC102": True,
    "(  # accumlint: ignore[ACC102]\n    loss.backward()\n)": True,
    "# accumlint: ignore[ACC102]\n(\n    loss.backward()\n)": True,
    "loss.backward(\n    '''\n    '''\n)  # noqa": True,
    "for loss.backward in (\n    x\n):  # noqa: ACC102\n    pass": True,
    "for loss.backward in x:\n    pass  # noqa: ACC102": False,
    # For the whole file.
    "# accumlint: ignore-file\nx = 1\nloss.backward()": True,
    "loss.backward()\n# accumlint: ignore-file[ACC102]": True,
    "if x:\n    # accumlint: ignore-file[loss-not-divided]\n    loss.backward()": True,
    "# accumlint: ignore-file[ACC201]\nloss.backward()": False,
    # What an older tokenizer cannot read.
    "loss.backward()  # accumlint: ignore[ACC102]\nx = '''": True,
    "# accumlint: ignore[ACC102]\nloss.backward()\nx = '''": True,
    "loss.backward()  # accumlint: ignore[ACC201]\nx = '''": False,
}


@pytest.mark.parametrize("source", CASES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_way_to_write_an_ignore(source: str, end: str) -> None:
    line = 1 + source[: source.index("loss.backward")].count("\n")
    suppressions = suppression.read(source.replace("\n", end) + end)
    assert bool(suppressions.silencing(CODE, NAME, line)) == CASES[source]


# A comment, and the reason that stands in it.
REASONS = {
    "# accumlint: ignore[ACC102] the criterion divides": "the criterion divides",
    "# accumlint: ignore[ACC102]: see [1]": "see [1]",
    "# accumlint: ignore, the criterion divides": "the criterion divides",
    "# accumlint: ignore-file[ACC102] - not ours": "not ours",
    "# noqa: ACC102 the criterion divides": "the criterion divides",
    "# accumlint: ignore[ACC102]  # type: ignore": "",
    "# accumlint: ignore[ACC102]": "",
}


@pytest.mark.parametrize("comment", REASONS)
def test_an_ignore_may_give_its_reason(comment: str) -> None:
    (ignore,) = suppression.read(comment).ignores
    assert ignore.reason == REASONS[comment]


@pytest.mark.parametrize(
    ("source", "ignored", "expected"),
    [
        (LOOP.replace("error: ACC102", "noqa: ACC102 by hand"), (), (True, "by hand")),
        (LOOP, (("*.py", ("ACC102",)),), (False, "")),
    ],
)
def test_a_silenced_finding_is_kept_with_its_reason(
    source: str, ignored: tuple[tuple[str, tuple[str, ...]], ...], expected: tuple[bool, str]
) -> None:
    settings = Settings(Path("/"), select=("ACC102",), per_file_ignores=ignored)
    checked = check_bytes(source.encode(), Target("train.py", "/train.py", settings))
    (silenced,) = checked.silenced
    assert checked.reports == ()
    assert (silenced.by_comment, silenced.reason) == expected


def test_a_silenced_finding_is_not_reported(run: Run, tmp_path: Path) -> None:
    silenced = LOOP.replace("# error: ACC102", "# error: ACC102  # accumlint: ignore[ACC102]")
    (tmp_path / "train.py").write_text(silenced)
    ran = run("check")
    assert (ran.code, ran.out) == (0, "All clear: no finding in 1 file\n")


NEEDED = LOOP.replace("# error: ACC102", "# accumlint: ignore[ACC102]")


@pytest.mark.parametrize(
    ("source", "arguments", "expected"),
    [
        (NEEDED, [], []),
        (NEEDED, ["--select", "ACC9"], []),
        (NEEDED, ["--ignore", "ACC102"], []),
        (
            NEEDED.replace("loss.b", "(loss / accumulation_steps).b"),
            ["--select", "ACC9"],
            ["ACC901"],
        ),
        (NEEDED.replace("loss.b", "(loss / accumulation_steps).b"), ["--ignore", "ACC901"], []),
        ("x = 1  # accumlint: ignore\n", [], ["ACC901"]),
        ("x = 1  # accumlint: ignore\n", ["--select", "ACC1"], []),
        ("x = 1  # accumlint: ignore[ACC901]\n", [], []),
        ("x = '\xff'  # accumlint: ignore\n", [], []),
    ],
)
def test_an_ignore_is_judged_by_all_rules(
    run: Run, tmp_path: Path, source: str, arguments: list[str], expected: list[str]
) -> None:
    (tmp_path / "train.py").write_bytes(source.encode("latin-1"))
    ran = run("check", *arguments)
    assert [line.split()[1] for line in ran.out.splitlines() if ": ACC" in line] == expected
    assert ran.err == ""
