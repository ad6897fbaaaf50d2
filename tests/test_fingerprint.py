"""A finding keeps its name while it moves, and GitHub would give it the same one."""

from __future__ import annotations

from textwrap import indent

import pytest
from helpers import LOOP, alone

from accumlint.check import check_bytes
from accumlint.diagnostics.results.fingerprint import line_hashes
from accumlint.diagnostics.results.report import Report


def reports(source: str) -> tuple[Report, ...]:
    target = alone(select=("ACC102",))
    return check_bytes(source.encode(), target).reports


def names(source: str) -> list[str]:
    return [report.fingerprint for report in reports(source)]


TWICE = LOOP + LOOP.replace("def train", "def train_again")
SAME = {
    "lines above": "# a remark\n\n" + LOOP,
    "blanks": LOOP.replace("loss.backward()", "loss.backward( )"),
    "a comment behind": LOOP.replace("# error: ACC102", "# a remark"),
    "another finding below": TWICE,
    "another end of line": LOOP.replace("\n", "\r\n"),
}
OTHER = {
    "another function": LOOP.replace("def train", "def fit"),
    "another statement": LOOP.replace("loss", "error"),
    "a class around": "class Trainer:\n" + indent(LOOP.replace("(model", "(self, model"), "    "),
}


@pytest.mark.parametrize("change", SAME)
def test_a_finding_keeps_its_name(change: str) -> None:
    assert names(SAME[change])[0] == names(LOOP)[0]


@pytest.mark.parametrize("change", OTHER)
def test_another_finding_has_another_name(change: str) -> None:
    assert names(OTHER[change])
    assert not set(names(OTHER[change])) & set(names(LOOP))


def test_equal_findings_are_numbered() -> None:
    assert len(set(names(LOOP + "\n\n" + LOOP))) == 2


# What github/codeql-action's own tests expect (src/fingerprints.test.ts).
GREETINGS = [
    "e9496ae3ebfced30:1",
    "fb7c023a8b9ccb3f:1",
    "ce8ba1a563dcdaca:1",
    "e20e36e16fcb0cc8:1",
    "b3edc88f2938467e:1",
    "c8e28b0b4002a3a0:1",
    "c129715d7a2bc9a3:1",
]
HASHES = [
    ("", ["c129715d7a2bc9a3:1"]),
    (
        " a\nb\n  \t\tc\n d",
        ["271789c17abda88f:1", "54703d4cd895b18:1", "180aee12dab6264:1", "a23a3dc5e078b07b:1"],
    ),
    (" hello; \t\nworld!!!\n\n\n  \t\tGreetings\n End\n", GREETINGS),
    (" hello; \t\nworld!!!\r\r\r  \t\tGreetings\r End\r", GREETINGS),
    (" hello; \t\r\nworld!!!\r\n\r\n\r\n  \t\tGreetings\r\n End\r\n", GREETINGS),
    (" hello; \t\nworld!!!\r\n\n\r  \t\tGreetings\r End\r\n", GREETINGS),
    (
        "Lorem ipsum dolor sit amet.\n" * 10,
        [
            *(f"a7f2ff13bc495cf2:{number}" for number in range(1, 7)),
            "a7f2ff1481e87703:1",
            "a9cf91f7bbf1862b:1",
            "55ec222b86bcae53:1",
            "cc97dc7b1d7d8f7b:1",
            "c129715d7a2bc9a3:1",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), HASHES)
def test_lines_are_hashed_as_github_does(text: str, expected: list[str]) -> None:
    lines = range(1, len(expected) + 1)
    assert list(line_hashes(text.encode(), lines).values()) == expected


def test_bytes_that_are_no_utf_8_are_hashed_too() -> None:
    assert line_hashes(b"\xe9 = 1\n", [1, 2]) == line_hashes("\ufffd = 1\n".encode(), [1, 2])
