"""A finding is recognised by its function and its statement, however the code is laid out."""

from __future__ import annotations

import pytest

from accumlint import reading
from accumlint.reading.enclosing import normal
from accumlint.reading.ir import Name, walk
from accumlint.reading.project import Project

# The node looked at is the name `here`.
SOURCES = {
    "here": ("", "here"),
    "x = 1; here": ("", "here"),
    "x = f(here)  # remark": ("", "x=f(here)"),
    "def f():\n    here": ("f", "here"),
    "class A:\n    def f(self):\n        def g():\n            here": ("A.f.g", "here"),
    "class A:\n    x = here": ("A", "x=here"),
    "def f(x):\n    # remark\n    if x:\n        here.g(\n            1,  # remark\n        )": (
        "f",
        "here.g(1)",
    ),
    "for x in here:  # remark\n    pass": ("", "for x in here:"),
    "while (\n    x and\n    here\n): pass": ("", "while(x and here):"),
    "if x:\n    y\nelif here:\n    z": ("", "elif here:"),
    "if x:\n    y\nelse:\n    here": ("", "here"),
    "with x(here) as y, z:\n    pass": ("", "with x(here)as y,z:"),
    "def f(x=here):\n    pass": ("f", "def f(x=here):"),
    "return_ = lambda: here": ("", "return_=lambda:here"),
}
# Code, and another layout of it.
LAYOUTS = [
    ("f(a, b)", "f(\n    a,\n    b,\n)"),
    ("x = [1, 2]", "x=[ 1,\\\n 2, ]  # two"),
    ("f('a # b', c)", "f(\n'a # b',  # '\nc)"),
    ("not x", "not  x"),
]
DIFFERENT = [("notx", "not x"), ("f(' ')", "f('')"), ("a.b", "ab"), ("f('a,)')", "f('a)')")]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_scope_and_statement(source: str, end: str) -> None:
    program = reading.read(source.replace("\n", end) + end, "train.py", Project())
    (node,) = (n for n in walk(program.body) if isinstance(n, Name) and n.id == "here")
    around = program.surroundings(node)
    assert (around.scope, around.statement) == SOURCES[source]


@pytest.mark.parametrize(("code", "other"), LAYOUTS)
def test_layout_changes_nothing(code: str, other: str) -> None:
    assert normal(code) == normal(other)


@pytest.mark.parametrize(("code", "other"), DIFFERENT)
def test_what_means_something_else_differs(code: str, other: str) -> None:
    assert normal(code) != normal(other)
