"""Puts what the playground runs on into the site: Pyodide, the linter and what it imports, the mistakes of its gallery.

    python pages/playground.py && mkdocs build --strict

The command fetches Pyodide (with npm) and the packages (with pip) into `build/playground`, which is not kept in git.
mkdocs runs this file as a hook, which fetches nothing: a site that is built without them says so on its page.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from accumlint.diagnostics.drawing.stylesheet import STYLE

ROOT = Path(__file__).parents[1]
FETCHED = ROOT / "build" / "playground"
SCRIPT = ROOT / "docs" / "playground" / "in_browser.py"
MISTAKES = ROOT / "docs" / "mistakes.md"
PYODIDE = "314.0.7"
_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
_FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
    "package.json",
)
_PARTS = (*(f"pyodide/{name}" for name in _FILES), "packages.zip", "snapshot.gz")
# libcst needs yaml for its command only.
_UNUSED = ("pyyaml",)
# Compiled for the machine that fetched it, or tests.
_LEFT_OUT = re.compile(r"\.(so|pyd|dylib)$|/tests/|/__pycache__/")
_STORY = re.compile(
    r"^## (?P<title>[^\n]+)\n\n\*(?P<who>[^\n]+)\*\n\n(?P<text>.+?)\n\n```python\n(?P<code>.+?)```$",
    re.DOTALL | re.MULTILINE,
)
_MARKER = re.compile(r"  # error: [A-Z0-9, ]+$", re.MULTILINE)


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """What mkdocs calls with each page: below each mistake stands a link to the playground."""
    if not str(getattr(page, "url", "")).startswith("mistakes"):
        return markdown

    def linked(match: re.Match[str]) -> str:
        address = f"playground/index.html#story={slug(match['title'])}"
        return f"{match[0]}\n\n[Open it in the playground]({address})"

    return _STORY.sub(linked, markdown)


def on_post_build(config: Mapping[str, str], **_: object) -> None:
    """What mkdocs calls when the site is written."""
    place(Path(config["site_dir"]) / "playground")


def place(folder: Path) -> None:
    """Writes into the playground's folder of a site what is not in the repository."""
    whole = all((FETCHED / name).exists() for name in _PARTS)
    if whole:
        shutil.copytree(FETCHED / "pyodide", folder / "pyodide", dirs_exist_ok=True)
        for name in ("packages.zip", "snapshot.gz"):
            shutil.copy(FETCHED / name, folder)
    parts = {"runs": whole, "stories": list(stories())}
    (folder / "parts.json").write_text(json.dumps(parts), encoding="utf-8")
    (folder / "accumlint.css").write_text(STYLE, encoding="utf-8")


def stories() -> Iterator[dict[str, str]]:
    """The mistakes with their names, texts and loops, which lose the markers that tests read."""
    for match in _STORY.finditer(MISTAKES.read_text(encoding="utf-8")):
        yield {
            "id": slug(match["title"]),
            "title": match["title"],
            "who": match["who"],
            "html": _html(match["text"]),
            "code": _MARKER.sub("", match["code"]),
        }


def slug(title: str) -> str:
    """A title as mkdocs writes it in an address."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _html(text: str) -> str:
    """Paragraphs with `code` and [links](address)."""
    whole = html.escape(text, quote=False)
    whole = re.sub(r"`([^`]+)`", r"<code>\1</code>", whole)
    whole = re.sub(r"\[([^\]]+)\]\((https://[^)\s\"]+)\)", r'<a href="\2">\1</a>', whole)
    return "".join(f"<p>{paragraph}</p>" for paragraph in whole.split("\n\n"))


# Fetching


def fetch() -> None:
    """Fetches Pyodide, builds the linter's wheel, fetches what that needs, and makes one archive of the packages."""
    shutil.rmtree(FETCHED, ignore_errors=True)
    for name in ("pyodide", "wheels"):
        (FETCHED / name).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        _fetch_pyodide(Path(folder))
        # A copy, since a build leaves its own traces where it is made.
        source, wheels = Path(folder) / "source", Path(folder) / "wheels"
        left_out = shutil.ignore_patterns(".*", "build", "fixtures", "tests", "docs")
        shutil.copytree(ROOT, source, ignore=left_out)
        _run(sys.executable, "-m", "pip", "wheel", "-q", "-w", str(wheels), str(source))
        for wheel in sorted(wheels.glob("*.whl")):
            if not wheel.name.lower().startswith(_UNUSED):
                _repack(wheel, FETCHED / "wheels" / wheel.name)
        texts = Path(folder) / "texts.json"
        texts.write_text(json.dumps([story["code"] for story in stories()]), encoding="utf-8")
        compiler = Path(__file__).with_name("compile.mjs")
        _run("node", *map(str, (compiler, FETCHED, SCRIPT, texts)))


def _fetch_pyodide(folder: Path) -> None:
    _run("npm", "pack", f"pyodide@{PYODIDE}", "--pack-destination", str(folder), "--silent")
    package = folder / f"pyodide-{PYODIDE}.tgz"
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != _SHA256:
        sys.exit(f"pyodide {PYODIDE} is not the package that was pinned: its SHA-256 is {found}")
    with tarfile.open(package) as archive:
        for name in _FILES:
            data = archive.extractfile(f"package/{name}")
            if data is None:
                sys.exit(f"pyodide {PYODIDE} holds no {name}")
            (FETCHED / "pyodide" / name).write_bytes(data.read())


def _repack(wheel: Path, to: Path) -> None:
    """A wheel without what was compiled for another machine; a pure one keeps all its files."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            if not _LEFT_OUT.search(entry.filename):
                new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)


def _run(*command: str) -> None:
    if not shutil.which(command[0]):
        sys.exit(f"{command[0]} is needed to fetch what the playground runs on")
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if ran.returncode:
        sys.exit(f"`{' '.join(command[:3])}` failed, see above")


if __name__ == "__main__":
    fetch()
