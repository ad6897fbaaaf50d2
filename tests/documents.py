"""Reads the HTML that we write as strictly as nobody else does, and shows it to a browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path


@dataclass
class Node:
    """An element with what is in it."""

    name: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list["Node"])
    words: list[str] = field(default_factory=list[str])

    def all(self, *names: str) -> list[Node]:
        found = [self] if self.name in names else []
        return found + [node for child in self.children for node in child.all(*names)]

    @property
    def text(self) -> str:
        return " ".join([*self.words, *(child.text for child in self.children)])


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in ("meta", "input"):
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].words.append(data)


def read(text: str) -> Node:
    reader = Reader()
    reader.feed(text)
    reader.close()
    (root,) = reader.open
    return root


def everything(text: str) -> list[Node]:
    pending = [read(text)]
    for node in pending:
        pending.extend(node.children)
    return pending


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


def browse(folder: Path, *arguments: str) -> str:
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command: Sequence[str] = [BROWSER, *options, *arguments[:-1], (folder / arguments[-1]).as_uri()]
    ran = subprocess.run(command, capture_output=True, check=True, timeout=120)
    return ran.stdout.decode()
