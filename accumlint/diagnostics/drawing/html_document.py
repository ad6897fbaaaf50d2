"""One HTML file that needs nothing else and runs nothing: its style is its own, its policy allows no more."""

from __future__ import annotations

import base64
import hashlib

from accumlint.diagnostics.drawing.markup import Markup, element
from accumlint.diagnostics.drawing.stylesheet import STYLE


def document(title: str, header: Markup, main: Markup) -> str:
    """The file as text."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', header, main), lang='en')}\n"
