"""What pages are made of: prose, tables, pictures and code that can be scrolled, things to open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from textwrap import dedent

from accumlint.diagnostics.drawing.markup import Markup, element, joined, lines
from accumlint.diagnostics.drawing.stylesheet import STYLE


def prose(text: str) -> Markup:
    """Text with its `code` as such, in which no line is broken inside a figure such as 3.1e-16."""
    parts = re.split(r"(`[^`]+`|\d[\d.]*e-\d+)", text)
    return joined(*(_kept_together(part) if i % 2 else part for i, part in enumerate(parts)))


def _kept_together(part: str) -> Markup:
    if part.startswith("`"):
        return element("code", part.strip("`"))
    return element("span", part, class_="figure")


def scrolled(child: Markup, label: str) -> Markup:
    """Something wide, which the keyboard can scroll."""
    return element("div", child, class_="scroll", tabindex="0", role="group", aria_label=label)


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str | None = None
) -> Markup:
    """A table whose rows begin with their name."""
    head = element("tr", *(element("th", name, scope="col") for name in heads))
    body = (
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell) for cell in row[1:]),
        )
        for row in rows
    )
    whole = element(
        "table",
        element("caption", caption),
        element("thead", head),
        element("tbody", *body),
        class_=kind,
    )
    return scrolled(whole, f"Table: {caption}")


def details(title: str, *children: Markup) -> Markup:
    """Something that is opened to be seen."""
    return element("details", element("summary", prose(title)), *children)


def code(text: str, label: str) -> Markup:
    """Lines as they are."""
    return element(
        "pre",
        element("code", lines(text)),
        tabindex="0",
        role="group",
        aria_label=label,
    )


def source(
    rows: Iterable[tuple[int, str]], flagged: Iterable[int], label: str, marked: Iterable[int] = ()
) -> Markup:
    """Lines with their numbers; the flagged ones stand out, the marked ones stand before the rest."""
    numbered = list(rows)
    bare = dedent("\n".join(text.rstrip("\r") for _, text in numbered)).split("\n")
    kinds = dict.fromkeys(marked, "marked") | dict.fromkeys(flagged, "flagged")
    shown: list[str] = []
    before: int | None = None
    for (number, _), text in zip(numbered, bare, strict=True):
        if before is not None and number > before + 1:
            shown.append(element("span", element("span", "    ⋮", class_="number"), class_="near"))
        before = number
        shown.append(
            element(
                "span",
                element("span", f"{number:>5}  ", class_="number", aria_hidden="true"),
                lines(text),
                class_=kinds.get(number, "near"),
            )
        )
    return element(
        "pre",
        element("code", Markup("\n".join(shown))),
        class_="source",
        tabindex="0",
        role="group",
        aria_label=label,
    )


def standalone(parts: Iterable[Markup], width: float, height: float) -> Markup:
    """Parts as an SVG file of its own, on paper of its own."""
    return element(
        "svg",
        element("style", Markup(STYLE)),
        element("rect", class_="sheet", width="100%", height="100%"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
    )


def placed(drawn: Markup, x: float, y: float) -> tuple[Markup, float, float]:
    """A picture at a place of a larger one, with its width and height."""
    head = drawn.partition(">")[0]
    sizes = (head.partition(f' {name}="')[2].partition('"')[0] for name in ("width", "height"))
    width, height = map(float, sizes)
    return element("svg", drawn, x=x, y=y, width=width, height=height), width, height
