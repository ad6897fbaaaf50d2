"""The documentation holds what it says: blocks run or parse, what is shown is printed, no link is dead.

`python tests/test_docs.py` rewrites what is shown as printed.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from shutil import which

import click
import pytest
import tomli
from helpers import ROOT, findings, markers
from ruamel.yaml import YAML

from accumlint.cli import accumlint

DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
GENERATED = ("contracts.md",)
_BLOCK = re.compile(r"^( *)```([\w-]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SHOWN = re.compile(
    r"(?P<open>```text\n\$ accumlint (?P<arguments>[^\n]*)\n)(?P<printed>.*?)```", re.DOTALL
)


def blocks() -> Iterator[tuple[str, str, str]]:
    """Where a block stands, its language and its text."""
    for file in DOCS:
        if file.name in GENERATED:
            continue
        text = file.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            body = re.sub(f"^{match[1]}", "", match[3], flags=re.MULTILINE)
            yield f"{file.name}:{line}", match[2], body


BLOCKS = [pytest.param(language, text, id=where) for where, language, text in blocks()]


def test_the_architecture_names_what_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    named = re.findall(r"`(accumlint\.[\w.]+)`", page)
    named += [f"accumlint.{name}" for name in re.findall(r'class="f"[^>]*>([\w.]+)<', picture)]
    assert len(named) > 20
    # torch's own part is found, not imported.
    absent = [name for name in named if not (".harness." in name or located(name))]
    assert not absent


def located(name: str) -> bool:
    """True for the name of a module, or of something that its module holds."""
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_is_what_it_says(language: str, text: str) -> None:
    match language:
        case "python":
            compile(text, "block", "exec")
            assert findings(text) == markers(text)
        case "sh":
            for command in commands(text):
                understood(command)
        case "toml":
            tomli.loads(text)
        case "yaml":
            YAML(typ="safe").load(text)  # pyright: ignore[reportUnknownMemberType]
        case "json":
            json.loads(text)
        case "text":
            assert text.strip()
        case _:
            assert not language, f"nothing checks a block of {language}"
            assert not text.lstrip().startswith(("accumlint ", "import ", "from "))


def commands(text: str) -> Iterator[list[str]]:
    """What a shell block asks of accumlint, one list of words for each command."""
    for line in text.splitlines():
        for part in re.split(r"&&|\|", line.partition(" #")[0]):
            words = shlex.split(part) if "$(" not in part else []
            # Behind these come a file and somebody else's arguments.
            for end in ("<", "--"):
                words = words[: words.index(end)] if end in words else words
            if words and Path(words[0]).name == "accumlint":
                yield words[1:]


def test_commands_within_sentences_exist() -> None:
    inline = re.compile(r"(?<!`)`(accumlint [^`]+)`(?!`)")
    told = [text for file in DOCS for text in inline.findall(file.read_text("utf-8"))]
    assert told
    for words in (words for text in told for words in commands(text)):
        understood(words)


def understood(words: list[str]) -> None:
    """Fails where a command has no such name or option."""
    if not words or words[0] in ("--version", "--help"):
        return
    group: click.Command = accumlint
    context = click.Context(group)
    while isinstance(group, click.Group):
        found = group.get_command(context, words[0])
        assert found is not None, words
        group, words = found, words[1:]
    known = {
        option
        for parameter in group.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"{group.name} has no option {word}"


def printed(arguments: str) -> str:
    """What the command prints in the project's folder, as on a terminal of 80 columns without colours."""
    command = [sys.executable, "-X", "utf8", "-m", "accumlint", *arguments.split()]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout.decode()


def shown() -> Iterator[tuple[str, str, str]]:
    for file in DOCS:
        for match in _SHOWN.finditer(file.read_text(encoding="utf-8")):
            yield file.name, match["arguments"], match["printed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [pytest.param(a, p, id=f"{name} {a}") for name, a, p in shown() if name != "README.md"],
)
def test_what_is_shown_is_printed(arguments: str, said: str) -> None:
    assert printed(arguments) == said


# A package or a tag of ours: neither exists before the first release.
_RELEASED = re.compile(r"pip install (?:-\S+ )*'?accumlint\b|accumlint@v\d|accumlint==\d|rev: v\d")


def test_what_needs_a_release_is_marked() -> None:
    unmarked: list[str] = []
    for file in [*DOCS, *sorted((ROOT / "docs" / "ci").iterdir())]:
        paragraphs = file.read_text(encoding="utf-8").split("\n\n")
        for before, paragraph in pairwise(["", *paragraphs]):
            # A block is introduced by the paragraph before it.
            told = before + paragraph if paragraph.startswith("```") else paragraph
            if _RELEASED.search(paragraph) and "once released" not in told.lower():
                unmarked.append(f"{file.name}: {paragraph}")
    assert unmarked == []


def test_the_examples_of_a_rule_work(tmp_path: Path) -> None:
    """The rule that the tutorial writes, installed as a package, finds what it is about."""
    (text,) = [
        t
        for where, language, t in blocks()
        if where.startswith("rule.md") and language == "python" and "(Rule)" in t
    ]
    package = tmp_path / "team_rules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "team001_clip_missing.py").write_text(text)
    about = tmp_path / "team_rules-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: team-rules\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[accumlint.rules]\nteam = team_rules\n")
    loop = ROOT / "fixtures" / "sample" / "train_ok.py"
    unclipped = "\n".join(line for line in loop.read_text().splitlines() if "clip_grad" not in line)
    (tmp_path / "train.py").write_text(unclipped + "\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from accumlint.cli import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "check",
        "--select",
        "TEAM",
        str(tmp_path / "train.py"),
    ]
    ran = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
    assert "TEAM001" in ran.stdout.decode(), ran.stderr.decode()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("material", reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return folder


def test_the_site_builds_without_a_dead_link(site: Path) -> None:
    assert (site / "rules" / "acc102.html").exists()


# What people type, and the rules whose pages come before all others.
SEARCHES = {
    "zero_grad": {"acc401", "acc402", "acc403"},
    "optimizer.zero_grad": {"acc401", "acc402", "acc403"},
    "no_sync": {"acc301", "acc302", "acc303"},
    "unscale_": {"acc201", "acc203"},
    "num_items_in_batch": {"acc601"},
    "ACC604": {"acc604"},
}


@pytest.mark.skipif(which("node") is None, reason="the site's search needs Node.js to run")
def test_the_search_puts_the_rules_of_a_name_first(site: Path) -> None:
    command = ["node", str(ROOT / "tests" / "site_search.js"), str(site), *SEARCHES]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)
    first = {query: set(found[query][: len(codes)]) for query, codes in SEARCHES.items()}
    assert first == {q: {f"rules/{c}.html" for c in codes} for q, codes in SEARCHES.items()}
    assert found["zero_grad"].index("rules/acc604.html") > 2


def rewrite() -> None:
    for file in DOCS:
        text = file.read_text(encoding="utf-8")
        new = _SHOWN.sub(lambda m: f"{m['open']}{printed(m['arguments'])}```", text)
        if new != text:
            file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    rewrite()
