"""No text, number, encoding or notebook hangs a run, breaks it down, or makes it grow."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Run
from helpers import LOOP

SETTINGS_OF_MEASURE = {
    "selectors": "select = [" + ", ".join(f'"ACX{i}"' for i in range(30_000)) + "]\n",
    "a deep key": ".".join(["a"] * 100_000) + " = 1\n",
    "a deep table": "[" + ".".join(["'a'"] * 100_000) + "]\n",
    "excludes": "exclude = [" + ", ".join(f'"x{i}*y"' for i in range(30_000)) + "]\n",
    "patterns with rules": "[per-file-ignores]\n" + "".join(f'"x{i}*y" = ["ACC1"]\n' for i in range(20_000)),
    "an endless number": f"x = {'9' * 5_000}\n",
    "half of a character": 'select = ["\\ud800"]\n',
    "a path with NUL": 'baseline = "a\\u0000b"\n',
    "escapes": 'ignore = ["' + "\\u0041" * 150_000 + '"]\n',
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS_OF_MEASURE)
def test_settings_past_all_measure_are_read_or_refused_in_one_line(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "accumlint.toml").write_text(SETTINGS_OF_MEASURE[name])
    for number in range(3):
        (tmp_path / f"x{number}.py").write_text(LOOP)
    start = time.process_time()
    ran = run("check", ".", "-j", "1")
    assert time.process_time() - start < 10
    assert ran.code in (0, 1, 2)
    assert (ran.code == 2) == (len(ran.err.splitlines()) == 1), ran.err
    assert len(ran.out.splitlines()) < 300


# What Python knows as an encoding and is none of text, or one in which ASCII is not itself.
CODECS = [
    "rot13", "hex", "base64", "zip", "bz2", "uu", "quopri", "idna", "punycode", "undefined", "utf-7",
    "unicode_escape", "raw_unicode_escape", "utf-16", "utf-32-le", "cp037",
]  # fmt: skip


@pytest.mark.parametrize("line", [1, 2])
@pytest.mark.parametrize("codec", CODECS)
def test_an_encoding_of_no_source_is_told_in_one_line(
    run: Run, tmp_path: Path, codec: str, line: int
) -> None:
    head = "#!/usr/bin/env python\n" * (line - 1)
    (tmp_path / "x.py").write_text(f"{head}# coding: {codec}\n{LOOP}")
    (tmp_path / "train.py").write_text(LOOP)
    ran = run("check")
    assert (ran.code, len(ran.err.splitlines()), ran.err[:6]) == (2, 1, "x.py: ")
    assert ran.out.startswith("train.py:11:")


def test_no_encoding_hides_a_word(run: Run, tmp_path: Path) -> None:
    hidden = LOOP.replace("backward", r"\x62ackward").replace("zero_grad", r"\x7aero_grad")
    (tmp_path / "x.py").write_text(f"# coding: unicode_escape\n{hidden}")
    assert run("check").code == 2


@pytest.mark.parametrize("codec", ["latin-1", "cp1252", "gbk", "shift_jis", "euc-jp", "koi8-r"])
def test_other_encodings_are_read(run: Run, tmp_path: Path, codec: str) -> None:
    (tmp_path / "x.py").write_text(f"# coding: {codec}\n{LOOP}")
    assert run("check").out.startswith("x.py:12:")


NUMBERS = [
    "10**400", "range(10**400)", "range(10**30)", "range(-2**63, 2**63)", "1e400", "int(1e400)", "float('inf')",
    "round(5, -10**10)", "pow(10, 10**10)", "1 << 10**9", "9" * 400, "0x" + "f" * 3900, "[0] * 10**10",
    "'a' * 10**400", "sorted(range(10**9))", "10**10**10", "7 / 10**400", "0.0 ** -1", "len(range(10**400))",
]  # fmt: skip
PLACES = {
    "a constant": "STEPS = {0}\n" + LOOP.replace("range(accumulation_steps)", "range(STEPS)"),
    "a loop": LOOP.replace("range(accumulation_steps)", "{0}"),
    "a range": LOOP.replace("range(accumulation_steps)", "range({0})"),
    "a divisor": LOOP.replace("loss.backward()", "(loss / ({0})).backward()"),
    "a gradient": LOOP.replace(
        "        optimizer.step()",
        "        for p in model.parameters():\n            p.grad.mul_({0})\n        optimizer.step()",
    ),
    "a condition": LOOP.replace(
        "optimizer.step()", "optimizer.step() if len(loader) % ({0}) == 0 else None"
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", PLACES)
def test_numbers_past_all_measure_are_no_fault(run: Run, tmp_path: Path, place: str) -> None:
    for at, number in enumerate(NUMBERS):
        (tmp_path / f"x{at}.py").write_text(PLACES[place].format(number))
    start = time.process_time()
    ran = run("check", "--no-cache", "-j", "1")
    assert (ran.code in (0, 1), ran.err) == (True, "")
    assert time.process_time() - start < 40


# The parts of a notebook's JSON, `{0}` for a loop's text, and what is told of it ("" where the loop is read).
NOTEBOOKS = {
    "cells twice": ('{{"cells": [], "cells": [{{"cell_type": "code", "source": {0}}}]}}', ""),
    "cells twice, more at first": (
        '{{"cells": [1, 2], "cells": [{{"cell_type": "code", "source": {0}}}]}}', "",
    ),
    "sources twice": (
        '{{"cells": [{{"cell_type": "code", "source": ["x", "y"], "source": [{0}]}}]}}', "",
    ),
    "half of a character": (
        '{{"cells": [{{"cell_type": "code", "source": [{0}, "\\ud800"]}}]}}',
        "x.ipynb:1: is no notebook: cell 1 holds half of a character",
    ),
    "depth": (
        '{{"cells": [{{"cell_type": "code", "source": {0}, "metadata": ' + "[" * 99_999 + "]" * 99_999 + "}}]}}",
        "x.ipynb: is no notebook: its JSON cannot be read",
    ),
    "numbers past all measure": (
        '{{"cells": [{{"cell_type": "code", "source": {0}, "metadata": ' + "9" * 5_000 + "}}]}}",
        "x.ipynb: is no notebook: its JSON cannot be read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "with escapes"])
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_read_or_refused_in_one_line(
    run: Run, tmp_path: Path, name: str, escaped: bool
) -> None:
    text, told = NOTEBOOKS[name]
    source = json.dumps(LOOP)
    if escaped:
        source = source.replace("b", "\\u0062").replace("t", "\\u0074")
    (tmp_path / "x.ipynb").write_text(text.format(source))
    ran = run("check", ".")
    assert ran.err.strip() == told
    assert (ran.code, "x.ipynb:cell 1:11:" in ran.out) == ((2, False) if told else (1, True))


def wide(word: str) -> str:
    """A word in letters of East Asian width, which Python takes for those of ASCII."""
    return "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in word)


@pytest.mark.parametrize("suffix", [".py", ".ipynb"])
@pytest.mark.parametrize("word", ["backward", "zero_grad", "step"])
def test_no_letter_that_python_takes_for_another_hides_a_word(
    run: Run, tmp_path: Path, word: str, suffix: str
) -> None:
    text = LOOP.replace(f".{word}", f".{wide(word)}")
    if suffix == ".ipynb":
        text = json.dumps({"cells": [{"cell_type": "code", "source": text}]})
    (tmp_path / f"x{suffix}").write_text(text)
    ran = run("check", ".")
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert f"spells `{word}` with characters that Python reads as other ones" in ran.err
    remark = f"# {wide('LOSS')}\uff1a \u640d\u5931\uff0c\u2460\n"
    (tmp_path / f"x{suffix}").unlink()
    (tmp_path / "y.py").write_text(remark + LOOP, encoding="utf-8")
    assert run("check", ".").out.startswith("y.py:12:")


# What `x` is at first, and the statement that follows forty times.
GROWING = [
    ("x = 7", "x = x * x"),
    ("x = 7 / 3", "x = x * x + 1 / x"),
    ("x = 'ab'", "x = x + x"),
    ("x = [1]", "x = x + x"),
    ("x = [1]", "x = x * 999"),
    ("x = [1]", "x += x"),
    ("x = []", "x.append(x)"),
    ("x = (1,)", "x = x + x"),
    ("x = model(0).loss", "x = x + x"),
    ("x = model", "x = (x == x) == (x == x)"),
    ("x = model", "x = max(x, x)"),
]


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
@pytest.mark.timeout(120)
def test_what_doubles_with_each_statement_stays_small(tmp_path: Path) -> None:
    begin = "    batches = iter(loader)\n"
    for at, (first, again) in enumerate(GROWING):
        body = "".join(f"            {row}\n" for row in [again] * 40)
        source = LOOP.replace(begin, f"{begin}    {first}\n")
        source = source.replace(
            "            loss.backward()", f"{body}            (loss / x).backward()"
        )
        (tmp_path / f"x{at}.py").write_text(source)
    limits = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))"
    check = "main(['check', '--no-cache', '-q', '-j', '1'])"
    ran = subprocess.run(
        [sys.executable, "-c", f"{limits}; from accumlint.cli import main; {check}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode in (0, 1), "Traceback" in ran.stderr) == (True, False), ran.stderr


# Calls that Python itself refuses, and an engine that divides by nothing.
REFUSED_BY_PYTHON = [
    "range()", "enumerate()", "zip()", "map()", "map(model)", "islice()", "cycle()", "count()", "reversed()",
    "sorted()", "items()", "loader.items()", "iter()", "filter()",
]  # fmt: skip


def test_calls_without_their_arguments_are_unknown(run: Run, tmp_path: Path) -> None:
    imports = "from itertools import count, cycle, islice\n"
    for at, iterable in enumerate(REFUSED_BY_PYTHON):
        places = (
            ("iter(loader)", f"iter({iterable})"),
            ("len(loader)", f"len({iterable})"),
            ("range(accumulation_steps)", iterable),
        )
        for number, (old, new) in enumerate(places):
            assert old in LOOP
            (tmp_path / f"x{at}_{number}.py").write_text(imports + LOOP.replace(old, new))
    ran = run("check", "--no-cache", "-j", "1")
    assert (ran.code in (0, 1), ran.err) == (True, "")


def test_zero_accumulation_steps_divide_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from accelerate import Accelerator\naccelerator = Accelerator(gradient_accumulation_steps=0)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\nfor x in loader:\n"
        "    with accelerator.accumulate(model):\n        accelerator.backward(model(x).mean())\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n"
    )
    ran = run("check")
    assert (ran.code in (0, 1), ran.err) == (True, "")


# A statement of a newer Python: of 3.12, or of 3.15.
NEWER = "type X = int\n" if sys.version_info < (3, 12) else "lazy import x\n"
# Texts that no parser is given: more code than is read, a longer file, and more than libcst is asked about.
LONG = {
    "code": (LOOP + "a = 1\n" * 250_000, "too long to be read"),
    "a comment": (LOOP + "#" + "-" * 9_000_000, "too long to be read"),
    "syntax of a newer Python": (NEWER * 30_000 + LOOP, "syntax error"),
}


@pytest.mark.parametrize("name", LONG)
def test_a_text_that_is_too_long_is_refused_in_one_line(
    run: Run, tmp_path: Path, name: str
) -> None:
    text, told = LONG[name]
    (tmp_path / "train.py").write_text(text)
    ran = run("check")
    assert ran.code == 2
    assert told in ran.err
    assert ran.err.count("\n") == 1
