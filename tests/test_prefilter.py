"""What a glance tells of a file: whether a word of training stands in its code."""

from __future__ import annotations

import pytest

from accumlint.files.prefilter import trains

TEXTS = {
    "a call": ("loss.backward()\n", True),
    "a call behind a comment's apostrophe": ("# it's the step\nloss.backward()\n", True),
    "a call behind a text in a text": ('print(f"{names["a"]}"); loss.backward()\n', True),
    "a call behind an escaped quote": ('say("\\" # "); loss.backward()\n', True),
    "a call behind a docstring": ('"""Calls `backward`."""\nloss.backward()\n', True),
    "a method of a trainer": ("def training_step(self, batch): ...\n", True),
    "a comment": ("x = 1  # loss.backward()\n", False),
    "a docstring": ('"""\n>>> loss.backward()\n"""\n', False),
    "a docstring with quotes": ("'''It's \"backward\".'''\n", False),
    "a text over two lines": ('x = "loss. \\\n backward()"\n', False),
    "an autograd function": ("def backward(ctx, gradient): ...\n", False),
    "an autograd function's backward, handed on": ("follow(self.function_cls.backward)\n", False),
    "a loss's backward, handed on": ("retry(self.loss.backward)\n", True),
    "a sum of what is put": ("index_put(x, at, values, accumulate)\n", False),
    "an accelerator's window": ("with accelerator.accumulate(model): ...\n", True),
    "part of another word": ("backwards = True\n", False),
}
# What has no end is for the parser to refuse.
ENDLESS = {
    "a docstring": '"""loss.backward()\n',
    "a docstring of apostrophes": "x = '''loss.backward()\n",
    "a text": 'x = "loss.backward()\n',
    "a backslash": '"""loss.backward()\\',
}
# Whoever looks for the end of each literal by itself reads these texts as often as they are long.
REPEATED = ['"""\n\\', '"""\n\\"', '"\\', "'\\", '"x\n']


@pytest.mark.parametrize("name", TEXTS)
def test_words_count_in_code_alone(name: str) -> None:
    text, trained = TEXTS[name]
    assert trains(text) is trained


@pytest.mark.parametrize("name", ENDLESS)
def test_a_literal_without_an_end_is_not_passed_over(name: str) -> None:
    assert trains(ENDLESS[name])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", REPEATED)
def test_quotes_without_an_end_are_read_once(part: str) -> None:
    assert trains(part * 300_000 + "backward")
