"""What accumlint says of a text, as HTML: the part of the playground that runs in Python in the reader's browser.

Nothing is run of what was written, and no other file is read. Results are JSON, which crosses to JavaScript unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from accumlint.check import Examined, Shared, examine, with_fixes
from accumlint.common.problem import Kind
from accumlint.config import Settings
from accumlint.drawing import findings_page, loops_page, traced_loops
from accumlint.drawing.components import prose
from accumlint.drawing.markup import element
from accumlint.fixing.rounds import fixed
from accumlint.inputs.discovery import Target
from accumlint.results.report import Checked

# A folder of its own, so that an import in the text finds no file of the browser's Python.
FOLDER = Path("/playground")
TARGET = Target("train.py", str(FOLDER / "train.py"), Settings(FOLDER))
# More loops without a finding are only counted.
_LOOPS = 4
# The newest syntax that libcst's parser in Python knows.
_SYNTAX = "3.8"

_last: Examined | None = None


def look(source: str) -> str:
    """What is found in a text: `html`, a sentence (`told`), the flagged `lines`, and whether `mend` may offer fixes."""
    global _last
    data = source.encode("utf-8", errors="replace")
    found = examine(data, TARGET, Shared(traced_loops.illustrate))
    _last = found if isinstance(found, Examined) else None
    checked = found.checked if isinstance(found, Examined) else found
    parts = [
        findings_page.article(report, f"finding-{number}", FOLDER)
        for number, report in enumerate(checked.reports, 1)
    ]
    if _last and not checked.reports:
        parts += _loops(data)
    parts.append(findings_page.left_over([checked], everything=True))
    answer = {
        "html": "".join(parts),
        "told": element("span", prose(_told(checked, source))),
        "kind": _kind(checked),
        "lines": sorted({report.mark.place.line for report in checked.reports}),
        "fixable": bool(_last and any(f.fixes for f in _last.findings.values())),
    }
    return json.dumps(answer)


def mend() -> str:
    """The fixes of what was looked at last: the id of a finding, its diff as `html`, and the `text` with it made."""
    if _last is None:
        return "[]"
    if "libcst" not in sys.modules:
        _install(parser())
    reports = with_fixes(_last).checked.reports
    fixes = [
        {
            "id": f"finding-{number}",
            "html": findings_page.fixing(report.fix),
            "text": fixed(_last.text.text, [report]),
            "offered": report.fix.applicability != "display",
        }
        for number, report in enumerate(reports, 1)
        if report.fix
    ]
    return json.dumps(fixes)


def _loops(data: bytes) -> list[str]:
    """The loops of a text in which nothing was found."""
    loops = [paths[0] for paths in traced_loops.show(data, TARGET).loops]
    drawn = [loops_page.article(p, f"loop-{n}") for n, p in enumerate(loops[:_LOOPS], 1)]
    if len(loops) > _LOOPS:
        drawn.append(element("p", f"{len(loops) - _LOOPS} more loops are not drawn here."))
    return list(drawn)


def _kind(checked: Checked) -> str:
    """How the result is to be coloured."""
    if checked.reports:
        return "bad"
    whole = checked.backwards and all(b.state == "whole" for b in checked.backwards)
    return "good" if whole and not checked.problems else "open"


def _told(checked: Checked, source: str) -> str:
    count, backwards = len(checked.reports), checked.backwards
    error = next((p for p in checked.problems if p.kind is not Kind.WARNING), None)
    if count:
        return "1 finding" if count == 1 else f"{count} findings"
    if error:
        where = f" (line {error.line})" if error.line else ""
        return f"Not checked: {error.message}{where}"
    if not source.strip():
        return "Nothing to check yet"
    if not backwards:
        return "No training loop was found: nothing here calls `backward()`"
    if _kind(checked) == "good":
        return "Nothing found, and every `backward()` call was read whole"
    return "Nothing found, but not everything was read: silence is no proof here"


# libcst's parser is compiled, and there is no build of it here. The one in Python that it had before is still there.


def parser() -> ModuleType:
    """A module in the place of libcst's compiled parser, which does the same with its parser in Python.

    Trees are alike, but for marks of empty lines. Syntax newer than Python 3.8 raises `ParserSyntaxError`, as
    unknown syntax does in the compiled one.
    """

    def parse(start: str, source: str, encoding: str = "utf-8") -> object:
        from libcst import PartialParserConfig
        from libcst._parser.detect_config import detect_config
        from libcst._parser.grammar import get_grammar
        from libcst._parser.python_parser import PythonCSTParser

        wanted = PartialParserConfig(python_version=_SYNTAX, encoding=encoding)
        detected = detect_config(
            source, partial=wanted, detect_trailing_newline=True, detect_default_newline=True
        )
        config = detected.config
        grammar = get_grammar(config.version, config.future_imports)
        return PythonCSTParser(
            tokens=detected.tokens, config=config, pgen_grammar=grammar, start_nonterminal=start
        ).parse()

    native = ModuleType("libcst.native")
    starts: Sequence[tuple[str, str]] = (
        ("parse_module", "file_input"),
        ("parse_statement", "stmt_input"),
        ("parse_expression", "expression_input"),
    )
    for name, start in starts:
        setattr(native, name, partial(parse, start))
    return native


def _install(native: ModuleType) -> None:
    """Puts the parser where libcst looks for it, unless the compiled one is there."""
    import libcst

    try:
        from libcst import native as _
    except ImportError:
        sys.modules["libcst.native"] = native
        libcst.native = native
