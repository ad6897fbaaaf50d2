"""What `accumlint trace --report` shares: names that many use, placeholders for the others, and the same findings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from conftest import Run
from helpers import FLAGGED, LOOP, findings, unmarked

from accumlint.editing.anonymous import UnreadableText, anonymised, common_words

CHANGED = [
    ("a name", "zorblax = 1", "word1 = 1"),
    ("a common name", "optimizer = 1", "optimizer = 1"),
    ("a word in a name", "zorblax_loss = 1", "word1_loss = 1"),
    ("a class", "class ZorblaxModel: x = 1", "class Word1Model:\n    x = 1"),
    ("a constant", "ZORBLAX_SIZE = 1", "WORD1_SIZE = 1"),
    ("an acronym before a word", "HTTPZorblax = 1", "WORD1Word2 = 1"),
    ("one word in two names", "zorblax = quuxify(zorblax)", "word1 = word2(word1)"),
    ("letters and numbers", "x1 = y2 + 17", "x1 = y2 + 17"),
    ("builtins and keywords", "print(len(range(3)))", "print(len(range(3)))"),
    ("an attribute", "model.zorblax.forward()", "model.word1.forward()"),
    ("a keyword of a call", "f(zorblax=1)", "f(word1=1)"),
    ("a parameter", "def f(zorblax): pass", "def f(word1):\n    pass"),
    ("a module", "import zorblax.train as z", "import word1.train as z"),
    ("a name from a module", "from .zorblax import quuxify", "from .word1 import word2"),
    ("a global name", "def f():\n    global zorblax", "def f():\n    global word1"),
    ("an exception", "try:\n    f()\nexcept E as zorblax: pass", "try:\n    f()\nexcept E as word1:\n    pass"),
    ("a pattern", "match x:\n    case [zorblax, *quuxify]: pass", "match x:\n    case [word1, *word2]:\n        pass"),
    ("a string", "f('mean', 'zorblax-mean')", "f('mean', 'word1-mean')"),
    ("a long string", f"f('{'loss ' * 40}')", f"f('{('loss ' * 40)[:80]}')"),
    ("bytes", "f(b'zorblax')", "f(b'')"),
    ("letters that are not ASCII", "größe = 'Müller'", "word1 = 'Word2'"),
    ("a comment", "x = 1  # zorblax", "x = 1"),
    ("a docstring", "def f():\n    '''Zorblax.'''\n    return 1", "def f():\n    return 1"),
    ("a string as a comment", "if x:\n    y = 1\nelse:\n    'Zorblax.'", "if x:\n    y = 1\nelse:\n    pass"),
    ("nothing but a docstring", "class C:\n    '''Zorblax.'''", "class C:\n    pass"),
    ("placeholders that are taken", "word1 = zorblax", "word1 = term1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "wanted"), [c[1:] for c in CHANGED], ids=[c[0] for c in CHANGED]
)
def test_words_that_are_not_common_get_placeholders(source: str, wanted: str) -> None:
    assert anonymised(source) == wanted + "\n"


def test_an_f_string_is_renamed_or_left_out() -> None:
    text = anonymised("f(f'{zorblax[\"quuxify\"]!r:>{loss}} zorblax')")
    ast.parse(text)
    assert "zorblax" not in text
    assert "quuxify" not in text


@pytest.mark.parametrize("source", ["def f(:", "x = '\0'"])
def test_what_cannot_be_parsed_is_refused(source: str) -> None:
    with pytest.raises(UnreadableText):
        anonymised(source)


def test_the_list_of_words_holds_words() -> None:
    words = common_words()
    assert {"loss", "optimizer", "accumulation", "backward", "accelerator", "labels"} <= words
    assert all(re.fullmatch("[a-z]{2,}", word) for word in words)


def test_the_findings_stay() -> None:
    text = anonymised(unmarked(LOOP))
    assert (
        {code for _, code in findings(text)} == {code for _, code in findings(LOOP)} == {"ACC102"}
    )


SECRET = unmarked(LOOP).replace("def train", "def train_zorblax").replace("images", "quuxify")


def test_a_report_has_the_findings_the_text_and_the_loop(run: Run) -> None:
    ran = run("trace", "-", "--report", "--stdin-filename", "zorblax.py", stdin=SECRET.encode())
    assert (ran.code, ran.err) == (0, "")
    assert "- found in the file, with its project around it: ACC102\n" in ran.out
    assert re.search(r"- found in the text below, alone: ACC102 at line \d+\n", ran.out)
    assert "```python\nimport torch.nn.functional as F\n" in ran.out
    assert "def train_word" in ran.out
    assert "step applies" in ran.out
    assert "zorblax" not in ran.out
    assert "quuxify" not in ran.out


def test_a_report_draws_the_loop_of_a_line(run: Run, tmp_path: Path) -> None:
    again = SECRET.partition("\n\n\n")[2].replace("train_zorblax", "train_other")
    (tmp_path / "train.py").write_text(f"{SECRET}\n\n{again}")
    assert run("trace", "train.py", "--report").out.count("step applies") == 2
    one = run("trace", f"train.py:{FLAGGED}", "--report").out
    assert one.count("step applies") == 1
    assert "train_word1()  anonymous.py" in one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--report", "--all"), "--report and --all exclude each other."),
        (
            ("--report", "--output-format", "svg"),
            "--report and --output-format exclude each other.",
        ),
        (("--report", "--output", "svg"), "--report and --output exclude each other."),
    ],
)
def test_a_report_is_a_format_of_its_own(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = run("trace", "-", *arguments, stdin=SECRET.encode())
    assert (ran.code, ran.err) == (2, f"accumlint trace: {said}\n")


def test_a_file_without_a_loop_has_no_report(run: Run) -> None:
    ran = run("trace", "-", "--report", stdin=b"x = 1\n")
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err == "accumlint: -: holds no training loop that can be read\n"
