"""The playground shows what the linter finds: its Python here, the whole page in a browser where there is one."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import libcst
import pytest
from documents import BROWSER, everything
from helpers import ROOT, markers

# playwright need not be installed, and then has no types.
Page = Any
FIXTURES, PLAYGROUND = ROOT / "fixtures", ROOT / "docs" / "playground"
RIGHT = """\
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps):
    batches = iter(loader)
    for _ in range(len(loader) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            images, labels = next(batches)
            loss = F.cross_entropy(model(images), labels)
            (loss / accumulation_steps).backward()
        optimizer.step()
"""
WRONG = RIGHT.replace("(loss / accumulation_steps)", "loss")


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


in_browser = module(PLAYGROUND / "in_browser.py")
building = module(ROOT / "pages" / "playground.py")
generate = module(ROOT / "pages" / "generate.py")
STORIES: list[dict[str, str]] = list(building.stories())
MISTAKES = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
BLOCKS = re.findall("```python\n(.+?)```", MISTAKES, re.DOTALL)


def test_the_gallery_holds_every_mistake_of_the_page() -> None:
    assert [story["title"] for story in STORIES] == re.findall("^## (.+)$", MISTAKES, re.MULTILINE)
    assert len({story["id"] for story in STORIES}) == len(STORIES) >= 12
    assert not [story["title"] for story in STORIES if "https://" not in story["html"]]
    assert not [story["title"] for story in STORIES if "# error" in story["code"]]


@pytest.mark.parametrize(("story", "block"), list(zip(STORIES, BLOCKS, strict=True)))
def test_a_mistake_is_found_where_its_marker_stood(story: dict[str, str], block: str) -> None:
    found = json.loads(in_browser.look(story["code"]))
    ((line, code),) = markers(block)
    assert (found["kind"], found["told"], found["lines"]) == ("bad", "1 finding", [line])
    assert code in found["html"]


def test_a_right_loop_is_drawn_and_told_as_read_whole() -> None:
    found = json.loads(in_browser.look(RIGHT))
    assert (found["kind"], found["lines"], found["fixable"]) == ("good", [], False)
    assert "read whole" in found["told"]
    assert "<svg" in found["html"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Nothing to check yet"),
        ("x = 1\n", "No training loop was found"),
        ("for x in y:\n    loss.backward(\n    optimizer.step()\n", "Not checked"),
        (
            RIGHT.replace("optimizer.step()", "helper(model, optimizer)"),
            "silence is no proof",
        ),
    ],
    ids=["empty", "no loop", "syntax", "partly"],
)
def test_silence_is_not_told_as_health(text: str, told: str) -> None:
    found = json.loads(in_browser.look(text))
    assert told in found["told"]
    assert found["kind"] == "open"


def test_a_fix_is_shown_as_a_diff_and_its_text_is_clean() -> None:
    assert json.loads(in_browser.look(WRONG))["fixable"]
    (fix,) = json.loads(in_browser.mend(WRONG))
    assert fix["offered"]
    assert {node.attributes.get("class") for node in everything(fix["html"])} >= {
        "added",
        "removed",
    }
    assert fix["text"] == RIGHT


def test_what_is_written_is_escaped() -> None:
    bold = WRONG.replace("loss", "loss_").replace("\n\n\ndef", "\n\nx = '<b id=bold>'\n\n\ndef")
    bold = bold.replace("images, labels = next(batches)", "images, labels = next(batches)  # <b>")
    (fix,) = json.loads(in_browser.mend(bold))
    html = json.loads(in_browser.look(bold))["html"] + fix["html"]
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_the_parser_in_python_gives_the_same_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [*FIXTURES.glob("acc201/bad_*.py"), *FIXTURES.glob("acc302/bad_*.py")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    texts += [story["code"] for story in STORIES]
    compiled = [in_browser.mend(text) for text in texts]
    monkeypatch.setitem(sys.modules, "libcst.native", native := in_browser.parser())
    monkeypatch.setattr(libcst, "native", native)
    assert sum(fixes != "[]" for fixes in compiled) > 20
    assert [in_browser.mend(text) for text in texts] == compiled


def test_syntax_that_the_parser_in_python_does_not_know_has_findings_and_no_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = WRONG.replace(
        "            images",
        "            match steps:\n                case 1:\n                    pass\n            images",
    )
    assert in_browser.mend(newer) != "[]"
    monkeypatch.setitem(sys.modules, "libcst.native", native := in_browser.parser())
    monkeypatch.setattr(libcst, "native", native)
    assert json.loads(in_browser.look(newer))["told"] == "1 finding"
    assert in_browser.mend(newer) == "[]"


def test_a_site_without_python_for_the_browser_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "FETCHED", tmp_path / "nothing")
    building.place(tmp_path)
    parts = json.loads((tmp_path / "parts.json").read_text(encoding="utf-8"))
    assert parts["runs"] is False
    assert len(parts["stories"]) == len(STORIES)


# In a browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the playground is served, as a site would serve it."""
    if not all((building.FETCHED / part).exists() for part in building._PARTS):
        pytest.skip("the playground's Python is not there: `python pages/playground.py` fetches it")
    site = tmp_path_factory.mktemp("site")
    folder = site / "playground"
    folder.mkdir()
    for file in PLAYGROUND.glob("*.*"):
        (folder / file.name).write_bytes(file.read_bytes())
    building.place(folder)
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/playground/index.html"
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files with the types that browsers insist on."""

    extensions_map = {  # noqa: RUF012
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if not BROWSER:
        pytest.skip("Chromium is not installed")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 390, "height": 844})
        browser.close()


def answered(page: Page) -> str:
    states = ("done", "failed", "dead", "absent")
    page.wait_for_timeout(300)
    page.wait_for_selector(",".join(f"body[data-state={s}]" for s in states), timeout=120_000)
    return page.inner_text("#told")


@pytest.mark.browser
def test_the_page_finds_mends_and_shares(page: Page, address: str) -> None:
    asked: list[str] = []
    problems: list[object] = []

    def note(request: Any) -> None:
        asked.append(request.url)

    def broke(problem: object) -> None:
        problems.append(problem)

    page.on("request", note)
    page.on("pageerror", broke)
    page.goto(address)
    assert answered(page) == "1 finding"
    assert page.locator("#result svg").count()
    assert page.locator("#gallery a").count() == len(STORIES)

    page.fill("#code", WRONG)
    assert answered(page) == "1 finding"
    assert page.locator("#gutter .flagged").inner_text() == "● 11"
    page.click("text=Apply this fix")
    assert "read whole" in answered(page)
    assert page.input_value("#code") == RIGHT

    page.click("#share")
    page.wait_for_selector("#shared:has-text('nothing was sent')")
    link = page.url
    page.fill("#code", "")
    assert answered(page) == "Nothing to check yet"
    page.goto("about:blank")
    page.goto(link)
    assert "read whole" in answered(page)
    assert page.input_value("#code") == RIGHT

    # The addresses that the pages of rules hold are made elsewhere.
    page.goto(f"{address}#{generate.link(WRONG)}")
    assert answered(page) == "1 finding"
    assert page.input_value("#code") == WRONG
    page.locator("#code").press("Control+End")
    page.keyboard.type("for x in y:\nz")
    assert page.input_value("#code") == f"{WRONG}for x in y:\n    z"
    page.keyboard.press("Tab")
    assert page.locator("#code:focus").count() == 0

    page.goto(f"{address}#code=broken")
    page.wait_for_selector("#shared:has-text('damaged')")
    site = address.rpartition("/playground")[0]
    assert not [url for url in asked if not url.startswith((site, "about:", "data:"))]
    assert not problems
    # Nothing is wider than a phone.
    assert page.locator("html").evaluate("e => e.scrollWidth") <= 390
