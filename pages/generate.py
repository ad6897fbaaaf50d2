"""Writes the pages of the site that come from the code: a page for each rule, their table, the framework contracts.

`mkdocs build --strict` runs it as a hook; `python pages/generate.py` runs it alone. What it writes is not kept in git.
"""

from __future__ import annotations

import base64
import re
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path

from accumlint import config
from accumlint.common.problem import Misuse
from accumlint.diagnostics.drawing import traced_loops
from accumlint.diagnostics.drawing.loops_page import svg
from accumlint.diagnostics.reporting.rule_pages import sentence
from accumlint.diagnostics.results.diagram import Loop, story
from accumlint.files.inputs.discovery import Target
from accumlint.reading.frameworks import CONTRACTS, Contract
from accumlint.reading.hooks import HOOKS, Hook
from accumlint.registry import accuracy, packs
from accumlint.rule import Rule

DOCS = Path(__file__).parents[1] / "docs"
RULES, PICTURES = DOCS / "rules", DOCS / "rules" / "pictures"
SCHEMES = ("light", "dark")
_BLOCK = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)
_CODE = re.compile(r"(?<![\w`\[/-])(ACC\d{3})(?![\w`\]-])")
_MARKER = re.compile(r"  # error: [A-Z0-9, ]+$", re.MULTILINE)
_IDENTIFIER = re.compile(r"\b[a-z]\w*_\w*")
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\n(.*?)\n\}\n", re.DOTALL)
_MEASURED = {
    "relative error": re.compile(r"relative error (?:of )?([\d.e-]+)"),
    "cosine": re.compile(r"cosine ([\d.e-]+)"),
    "length": re.compile(
        r"length(?: ratio)?(?: of the first applied gradient)?(?: of)? ([\d.e-]+)"
    ),
}


def on_pre_build(config: object) -> None:
    """What mkdocs calls before it looks for pages."""
    write()


def write() -> None:
    """Writes all generated pages."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    rules = [packs.rule(entry) for entry in packs.catalogue()]
    known = {rule.code for rule in rules}
    for rule in rules:
        _put(RULES / f"{rule.code.lower()}.md", _linked(_page(rule), known - {rule.code}))
    _put(RULES / "index.md", "\n".join(_index(rules)))
    _put(DOCS / "contracts.md", "\n".join(_contracts()))


def _put(file: Path, text: str) -> None:
    """Writes a file that changed: mkdocs watches them."""
    data = text.rstrip() + "\n"
    if not file.exists() or file.read_text(encoding="utf-8") != data:
        file.write_text(data, encoding="utf-8")


# A rule


def _page(rule: Rule) -> str:
    fix = f" Its fix is *{rule.fix.value}*." if rule.fix else ""
    opt_in = " It runs only when it is selected by name." if rule.opt_in else ""
    head = f"{_tags(rule)}# {rule.code} {rule.name}\n\n*{rule.severity.value.capitalize()}.*{fix}{opt_in}\n\n"
    if found := accuracy.of(rule.code):
        head += f"[On labelled public loops](../samples.md#rule-by-rule): {found.sentence}.\n\n"
    numbers = iter(range(1, 100))

    def pictured(match: re.Match[str]) -> str:
        picture = _picture(match[1], f"{rule.code.lower()}-{next(numbers)}")
        if picture:
            picture += f"\n\n[Open it in the playground](../playground/index.html#{link(match[1])})"
        return f"{match[0].rstrip()}\n\n{picture}".rstrip() + "\n"

    return head + _BLOCK.sub(pictured, rule.page())


def _tags(rule: Rule) -> str:
    """The identifiers that a rule is named after (`zero_grad`): a search for one finds its page first."""
    words = set(rule.name.split("-"))
    found = {name for name in _IDENTIFIER.findall(rule.page()) if name.split("_")[0] in words}
    return f"---\ntags: [{', '.join(sorted(found))}]\n---\n\n" if found else ""


def _picture(source: str, name: str) -> str:
    """The loop of an example as a picture, "" where there is nothing to see."""
    target = Target("example.py", "/example.py", config.Settings(Path("/"), select=("ALL",)))
    try:
        loops = traced_loops.show(source.encode(), target).loops
    except Misuse:
        return ""
    if not loops or not loops[0][0].timeline.groups:
        return ""
    loop = loops[0][0]
    drawn = svg([loop], heads=False)
    for scheme in SCHEMES:
        _put(PICTURES / f"{name}-{scheme}.svg", in_scheme(drawn, scheme))
    return picture(f"pictures/{name}", "svg", _told(loop))


def link(source: str) -> str:
    """A text as the playground reads it from an address, without the markers that tests read."""
    packer = zlib.compressobj(9, wbits=-15)
    data = packer.compress(_MARKER.sub("", source).encode()) + packer.flush()
    return "code=" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def _told(loop: Loop) -> str:
    return (story(loop.timeline) or "The window as a timeline.").replace("`", "")


def picture(path: str, kind: str, told: str) -> str:
    """Markdown that shows the light or the dark file, as the reader has it."""
    shown = (f"![{told}]({path}-{scheme}.{kind}#only-{scheme})" for scheme in SCHEMES)
    return "\n".join(shown)


def in_scheme(drawn: str, scheme: str) -> str:
    """A picture that would follow the reader's scheme, in one of the two."""
    return _DARK.sub(
        lambda match: textwrap.dedent(match[1]) + "\n" if scheme == "dark" else "", drawn
    )


def _linked(page: str, known: set[str]) -> str:
    """The page with links to the other rules that its text names."""
    parts = re.split(
        r"(```.*?```|`[^`\n]*`|^\[[^\n]*|^#[^\n]*)", page, flags=re.DOTALL | re.MULTILINE
    )

    def linked(match: re.Match[str]) -> str:
        code = match[1]
        return f"[{code}]({code.lower()}.md)" if code in known else code

    return "".join(p if i % 2 else _CODE.sub(linked, p) for i, p in enumerate(parts))


# Tables


def _index(rules: list[Rule]) -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield "Each rule's page says what goes wrong, with an example that is wrong and one that is right; both are run by"
    yield "a test. *Error*, *cosine* and *length* compare the applied gradient with the large batch's, where the page"
    yield "gives them, for the first measured case; a right loop has 0, 1 and 1. *Precision* and *recall* were counted"
    yield "on [labelled public loops](../samples.md#rule-by-rule), where most rules met few defects."
    yield ""
    yield "| rule | severity | fix | error | cosine | length | precision | recall |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for rule in rules:
        fix = rule.fix.value if rule.fix else ""
        opt_in = ", opt-in" if rule.opt_in else ""
        told = sentence(rule).replace("|", "\\|")
        link = f"[{rule.code} {rule.name}]({rule.code.lower()}.md)<br>{told}"
        figures = " | ".join([*measured(rule.page()), *_counted(rule.code)])
        yield f"| {link} | {rule.severity.value}{opt_in} | {fix} | {figures} |"


def _counted(code: str) -> tuple[str, str]:
    """Precision and recall as counts, "" where nothing was found or nothing was to be found."""
    found = accuracy.of(code)
    if found is None:
        return "", ""
    told, there = found.right + found.wrong, found.right + found.missed
    return f"{found.right}/{told}" if told else "", f"{found.right}/{there}" if there else ""


def measured(page: str) -> list[str]:
    """Relative error, cosine and length that a page gives under "Measured", "" for what it does not give."""
    paragraph = next((p for p in page.split("\n\n") if p.startswith("Measured")), "")
    first = " ".join(paragraph.split()).partition(";")[0].partition(". ")[0]
    return [
        match[1].rstrip(".") if (match := found.search(first)) else ""
        for found in _MEASURED.values()
    ]


def _contracts() -> Iterator[str]:
    yield "# What frameworks do on their own"
    yield ""
    yield "The tables that accumlint itself goes by: who divides the loss by the accumulation steps, who steps at the"
    yield "end of a window only, who clears the gradients, who leaves out the reduction over ranks inside a window."
    yield "What is not here leaves all of it to you: PyTorch itself, Lightning's manual optimization, timm's scalers,"
    yield "ColossalAI's booster, apex. Each row was read in the source of the version it names; frameworks are never"
    yield "followed as source."
    yield ""
    yield "| framework | divides | steps at the boundary only | clears | reduces once a window | read in | where |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    trainer = CONTRACTS["trainer"]
    for row in CONTRACTS.values():
        if row is not trainer:
            yield _contract(row.title, "yes" if row.divides else "you do", row, row)
    for hook in HOOKS:
        name = f"{hook.framework}: `{hook.method}` of {', '.join(sorted(hook.bases))}"
        yield _contract(name, hook.division.value, trainer, hook)


def _contract(name: str, divides: str, row: Contract, read: Contract | Hook) -> str:
    flags = ("yes" if flag else "you do" for flag in (row.gates, row.clears, row.syncs))
    return f"| {' | '.join((name, divides, *flags, read.version, read.source))} |"


if __name__ == "__main__":
    write()
