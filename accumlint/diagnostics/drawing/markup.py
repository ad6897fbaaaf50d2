"""Elements of a page; text in them is escaped, what is markup already is not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from html import escape

from accumlint.diagnostics.reporting.terminal import printable

# Elements that have no end tag in HTML.
_VOID = {"meta", "br", "input"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element; `class_` is the attribute "class", `aria_label` "aria-label". None leaves an attribute out."""
    opening = "".join(
        [f' {_named(k)}="{_value(v)}"' for k, v in attributes.items() if v is not None]
    )
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Elements and texts side by side."""
    return Markup("".join([c if isinstance(c, Markup) else _escaped(c) for c in children]))


def picture(
    parts: Iterable[Markup], width: float, height: float, name: str, title: str, told: str
) -> Markup:
    """A picture of so many pixels that a screen reader reads as its title and what is told; `name` begins its ids."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", told, id=f"{name}-told"),
        *parts,
        role="img",
        aria_labelledby=f"{name}-title {name}-told",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def lines(text: str) -> Markup:
    """Text whose line breaks and tabs stay what they are."""
    return Markup("\n".join("\t".join(map(joined, line.split("\t"))) for line in text.split("\n")))


# A page has thousands of elements with few texts.
@lru_cache(maxsize=4096)
def _escaped(text: str) -> str:
    return escape(printable(text))


@cache
def _named(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return _escaped(value) if isinstance(value, str) else f"{round(value, 2):g}"
