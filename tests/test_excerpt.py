"""Of a file that is edited, only the functions are read in which something is edited; each line keeps its place."""

from __future__ import annotations

import pytest

from accumlint import reading
from accumlint.editing.excerpt import excerpt
from accumlint.reading.ir import Call, dotted
from accumlint.reading.project import Project

# A text in which the call of `step` is edited, and what is left of it.
LEFT = {
    "def f():\n    step()\n\ndef g(x):\n    # why\n    y = '''\n'''\n    return y\n": (
        "def f():\n    step()\n\ndef g(x):\n    # why\n    ...\n\n\n"
    ),
    "class A:\n    def f(self):\n        step()\n\n    def g(self):\n        return 1\n": (
        "class A:\n    def f(self):\n        step()\n\n    def g(self):\n        ...\n"
    ),
    "class A:\n    @wrap\n    def f(self):\n        step()\nclass B:\n    x = 1\n    def g(self): pass\n": (
        "class A:\n    @wrap\n    def f(self):\n        step()\nclass B:\n    x = 1\n    def g(self): pass\n"
    ),
    "def f():\n    step()\ndef g(\n    x,\n): return (\n    x)\n": (
        "def f():\n    step()\ndef g(\n    x,\n): return (\n    x)\n"
    ),
    "def f():\n    step()\ndef g():\n    @wrap\n    def h():\n        pass\nx = g": (
        "def f():\n    step()\ndef g():\n    ...\n\n\nx = g"
    ),
    "def f():\n\tstep()\ndef g():\n\treturn 1": "def f():\n\tstep()\ndef g():\n\t...",
    "def g():\n    return 1\nstep()\n": "def g():\n    return 1\nstep()\n",
}


@pytest.mark.parametrize("text", LEFT)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_no_edit_is_about_is_left_out(text: str, end: str) -> None:
    written = text.replace("\n", end)
    program = reading.read(written, "x.py", Project())
    edited = [n for n in program.nodes if isinstance(n, Call) and dotted(n.func) == "step"]
    assert len(edited) == 1
    assert excerpt(program.source, edited) == LEFT[text].replace("\n", end)
