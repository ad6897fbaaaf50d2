"""What accumlint says of a text, as HTML: the part of the playground that runs in Python in the reader's browser.

Nothing is run of what was written, and no other file is read. Results are JSON, which crosses to JavaScript unchanged.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from accumlint.check import Examined, Shared, examine, with_fixes
from accumlint.common.problem import Kind
from accumlint.config import Settings
from accumlint.diagnostics.drawing import findings_page, loops_page, traced_loops
from accumlint.diagnostics.drawing.components import prose
from accumlint.diagnostics.drawing.markup import Markup, element
from accumlint.diagnostics.fixing.rounds import fixed
from accumlint.diagnostics.results.report import Checked
from accumlint.files.inputs.discovery import Target

# A folder of its own, so that an import in the text finds no file of the browser's Python.
FOLDER = Path("/playground")
TARGET = Target("train.py", str(FOLDER / "train.py"), Settings(FOLDER))
# More loops without a finding are only counted.
_LOOPS = 4
# The newest syntax that libcst's parser in Python knows.
_SYNTAX = "3.8"
_STARTS = {
    "parse_module": "file_input",
    "parse_statement": "stmt_input",
    "parse_expression": "expression_input",
}


def look(source: str) -> str:
    """What is found in a text: `html`, a sentence (`told`), the flagged `lines`, and whether `mend` may offer fixes."""
    found = _examined(source)
    checked = found.checked if isinstance(found, Examined) else found
    parts = [
        findings_page.article(report, f"finding-{number}", FOLDER)
        for number, report in enumerate(checked.reports, 1)
    ]
    if isinstance(found, Examined) and not checked.reports:
        parts += _loops(source)
    parts.append(findings_page.left_over([checked], everything=True))
    answer = {
        "html": "".join(parts),
        "told": prose(_told(checked, source)),
        "kind": _kind(checked),
        "lines": sorted({report.mark.place.line for report in checked.reports}),
        "fixable": isinstance(found, Examined) and any(f.fixes for f in found.findings.values()),
    }
    return json.dumps(answer)


def mend(source: str) -> str:
    """The fixes of what `look` found: the id of a finding, its diff as `html`, and the `text` with it made."""
    found = _examined(source)
    if not isinstance(found, Examined):
        return "[]"
    if "libcst.native" not in sys.modules and find_spec("libcst.native") is None:
        install(parser())
    fixes = [
        {
            "id": f"finding-{number}",
            "html": findings_page.fixing(report.fix),
            "text": fixed(source, [report]),
            "offered": report.fix.applicability != "display",
        }
        for number, report in enumerate(with_fixes(found).checked.reports, 1)
        if report.fix
    ]
    return json.dumps(fixes)


@lru_cache(maxsize=1)
def _examined(source: str) -> Examined | Checked:
    return examine(_data(source), TARGET, Shared(traced_loops.illustrate))


def _data(source: str) -> bytes:
    return source.encode("utf-8", errors="replace")


def _loops(source: str) -> list[Markup]:
    """The loops of a text in which nothing was found."""
    loops = [paths[0] for paths in traced_loops.show(_data(source), TARGET).loops]
    drawn = [loops_page.article(p, f"loop-{n}") for n, p in enumerate(loops[:_LOOPS], 1)]
    if len(loops) > _LOOPS:
        drawn.append(element("p", f"{len(loops) - _LOOPS} more loops are not drawn here."))
    return drawn


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
    # Modules that libcst keeps to itself, and gives no types.
    detecting, grammars, parsing, settings = (
        import_module(f"libcst._parser.{name}")
        for name in ("detect_config", "grammar", "python_parser", "types.config")
    )

    def parse(start: str, source: str, encoding: str = "utf-8") -> object:
        wanted = settings.PartialParserConfig(python_version=_SYNTAX, encoding=encoding)
        detected = detecting.detect_config(
            source, partial=wanted, detect_trailing_newline=True, detect_default_newline=True
        )
        config = detected.config
        return parsing.PythonCSTParser(
            tokens=detected.tokens,
            config=config,
            pgen_grammar=grammars.get_grammar(config.version, config.future_imports),
            start_nonterminal=start,
        ).parse()

    native = ModuleType("libcst.native")
    for name, start in _STARTS.items():
        setattr(native, name, partial(parse, start))
    return native


def install(native: ModuleType) -> None:
    """Puts a parser where libcst looks for its compiled one."""
    sys.modules[native.__name__] = native
    vars(import_module("libcst"))["native"] = native
