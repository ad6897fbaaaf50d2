"""What only a newer Python reads is said for an older one, with everything else in its place."""

from __future__ import annotations

import ast

import pytest

from accumlint.reading.concrete_syntax import older

# A statement, and what is left of it.
NEWER = {
    'here = f"{x["a"]} {f"{1 + 1}"}"': 'here = (""                    )',
    "here = f''": 'here = "" ',
    'here = "a" f"{x["b"]}" "c"': 'here = (""               )',
    "here = g(f'{\n    x\n}', 1)": 'here = g((""\n     \n ), 1)',
    "type X[T] = list[T]": '(""               )',
    "def here[T: int](x: T): ...": "def here        (x: T): ...",
    "def here[\n    T,\n](x): ...": "def here\\\n     \\\n (x): ...",
    "class here[T](Base[T]):\n    x = 1": "class here   (Base[T]):\n    x = 1",
}


@pytest.mark.parametrize("source", NEWER)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_older_python_reads_it(source: str, end: str) -> None:
    said = older(source.replace("\n", end) + end)
    assert said is not None
    assert said == NEWER[source].replace("\n", end) + end
    assert isinstance(ast.parse(said), ast.Module)


def test_a_star_of_a_handler_is_left_out() -> None:
    said = older("try:\n    x\nexcept  * OSError:\n    x * 2\n")
    assert said == "try:\n    x\nexcept    OSError:\n    x * 2\n"


def test_what_nobody_reads_is_left_alone() -> None:
    assert older("print 'x'\n") is None
