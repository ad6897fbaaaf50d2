"""The page stands alone, can be read by anyone and on anything, and obeys nothing that is written in it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import confirmed
import pytest

from accumlint.confirming.fates import fates, holding, story
from accumlint.confirming.page import page
from accumlint.confirming.result import Confirmation, Control, Moment
from accumlint.drawing.style import STYLE

SOURCE = "\n".join(f"    line_{number} = None" for number in range(1, 100))
WHOLE = page(confirmed.ALL, {"train.py": SOURCE})
BOTH = page((confirmed.CLEARED, confirmed.CLEARED_FIXED), {"train.py": SOURCE})


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
        if tag != "meta":
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


def test_it_needs_nothing_from_elsewhere() -> None:
    for node in everything(WHOLE):
        assert node.name not in {
            "script",
            "link",
            "img",
            "iframe",
            "object",
            "base",
            "use",
            "image",
        }
        for name, value in node.attributes.items():
            assert not name.startswith("on")
            assert name not in {"src", "srcset", "style", "action"}
            assert name != "href" or value.startswith("#")
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_its_policy_allows_its_own_style_and_no_more() -> None:
    (policy,) = (
        node.attributes["content"]
        for node in everything(WHOLE)
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = read(WHOLE).all("style")
    digest = base64.b64encode(hashlib.sha256("".join(style.words).encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_ids_are_unique_and_references_lead_somewhere() -> None:
    nodes = everything(WHOLE)
    ids = Counter(node.attributes["id"] for node in nodes if "id" in node.attributes)
    assert set(ids.values()) == {1}
    for node in nodes:
        for name in node.attributes.get("aria-labelledby", "").split():
            assert name in ids
        if "href" in node.attributes:
            assert node.attributes["href"][1:] in ids


def test_headings_leave_no_level_out() -> None:
    levels = [int(node.name[1]) for node in read(WHOLE).all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_picture_says_what_it_shows_and_every_table_too() -> None:
    root = read(WHOLE)
    assert len(root.all("svg")) > 30
    for picture in root.all("svg"):
        title, told = picture.children[:2]
        assert (title.name, told.name) == ("title", "desc")
        assert len(title.text) > 8
        assert len(told.text) > 8
        assert picture.attributes["role"] == "img"
        assert picture.attributes["aria-labelledby"].split() == [
            title.attributes["id"],
            told.attributes["id"],
        ]
    assert len(root.all("table")) > 30
    for table in root.all("table"):
        assert table.children[0].name == "caption"
        assert table.children[0].text.strip()
        assert all(node.attributes["scope"] in ("col", "row") for node in table.all("th"))
        (head,) = table.all("thead")
        columns = len(head.all("th"))
        (body,) = table.all("tbody")
        assert all(len(row.children) == columns for row in body.all("tr"))


def test_behind_every_picture_there_are_its_figures() -> None:
    for article in read(WHOLE).all("article"):
        captions = [node.text for node in article.all("caption")]
        titles = [node.children[0].text for node in article.all("svg")]
        if any(title.startswith("Timeline") for title in titles):
            assert any(caption.startswith("What was called in each") for caption in captions)
        if any(title.startswith(("Gradient", "Applied", "Largest")) for title in titles):
            assert "All figures of each update" in captions
        if any(title.startswith("Weight") for title in titles):
            assert "Targets of each micro-batch and their weight" in captions


def test_everything_that_scrolls_can_be_reached_by_keyboard() -> None:
    for node in everything(WHOLE):
        if node.name == "pre" or node.attributes.get("class") == "scroll":
            assert node.attributes["tabindex"] == "0"
            assert node.attributes["aria-label"]


def test_the_source_line_is_shown_between_its_neighbours() -> None:
    (source,) = (n for n in read(BOTH).all("pre") if n.attributes.get("class") == "source")
    rows = source.children[0].children
    assert [row.attributes["class"] for row in rows] == ["near"] * 2 + ["flagged"] + ["near"] * 2
    assert "line_42 = None" in rows[2].text


@pytest.mark.parametrize("sources", [{}, {"train.py": "one line\n"}, {"other.py": SOURCE}])
def test_without_the_source_there_is_no_line(sources: dict[str, str]) -> None:
    assert 'class="source"' not in page([confirmed.CLEARED], sources)


def test_both_arms_are_drawn_on_the_same_scale() -> None:
    titles = [node.children[0].text for node in read(BOTH).all("svg")]
    assert titles[: len(titles) // 2] == titles[len(titles) // 2 :]
    assert [node.text for node in read(BOTH).all("h3")] == ["As found", "In the fixed text"]
    outlines = [n for n in read(BOTH).all("rect") if n.attributes.get("class") == "reference"]
    heights = [node.attributes["height"] for node in outlines]
    assert heights[:2] == heights[2:]


# What became of micro-batches, by the moments of a pass.
STORIES = [
    (confirmed.CLEARED, "Of 8 micro-batches, 1-3, 5-7 are cleared before any step."),
    (confirmed.CLEARED_FIXED, ""),
    (
        confirmed.TRAILING,
        "Of 12 micro-batches, 5-6 are cleared before any step; 11-12 are never applied.",
    ),
    (confirmed.LEAKING, "Of 8 micro-batches, 1-4 are applied more than once."),
    (
        confirmed.OVERFLOWING,
        "Of 12 micro-batches, 5-8 are skipped, since their gradient is not finite.",
    ),
    (confirmed.RAISING, ""),
    (confirmed.ADVERSARIAL, ""),
    (confirmed.RAGGED, ""),
]


@pytest.mark.parametrize(("one", "told"), STORIES, ids=[one.name for one, _ in STORIES])
def test_the_timeline_tells_which_micro_batches_got_lost(one: Confirmation, told: str) -> None:
    assert story(one.passes[0]) == told
    drawn = page([one])
    lost = sum(fate.name in ("LOST", "LEFT") for fate in fates(one.passes[0]).values())
    assert drawn.count('class="strike"') == lost
    assert told in html.unescape(drawn)


# Moments that do not explain the measured gradients.
UNSEEN = [
    ("clears that left no trace", confirmed.CLEARED, "clear"),
    ("clears of a right loop that left none", confirmed.CLEARED_FIXED, "clear"),
    ("steps that left none", confirmed.CLEARED, "step"),
]


@pytest.mark.parametrize(
    ("one", "kind"), [row[1:] for row in UNSEEN], ids=[row[0] for row in UNSEEN]
)
def test_what_the_moments_do_not_explain_is_not_told(one: Confirmation, kind: str) -> None:
    (done, *_) = one.passes
    blind = replace(done, moments=tuple(m for m in done.moments if m.kind != kind))
    assert holding(done) is not None
    assert holding(blind) is None
    assert story(blind) == ""


EVIL = "</style></title><script>alert(1)</script><b onclick='x'>&\"\x1b[2J\u202e\0]]>--><!--"


def test_nothing_written_in_it_becomes_part_of_it() -> None:
    done = replace(
        confirmed.RAGGED.passes[0],
        updates=(
            replace(confirmed.UPDATE, optimizer=EVIL, factor=EVIL, scale=4.0, error=3.0),
            replace(confirmed.SECOND, optimizer="other"),
        ),
        raised=replace(confirmed.RAISED, kind=EVIL, message=EVIL),
        moments=tuple(replace(m, kind=EVIL) for m in confirmed.RAGGED.passes[0].moments),
        totals=(replace(confirmed.TOTAL, name=EVIL),),
    )
    evil = replace(
        confirmed.RAGGED,
        file=EVIL,
        code=EVIL,
        name=EVIL,
        claim=EVIL,
        message=EVIL,
        reason=EVIL,
        measured={EVIL: EVIL},
        control=Control(EVIL, True, 1.0),
        standins=(EVIL,),
        also=(EVIL,),
        setup=EVIL,
        passes=(done,),
    )
    written = page([evil, replace(evil, arm="fixed")], {EVIL: f"{EVIL}\n" * 99})
    plain = page([confirmed.CLEARED], {"train.py": SOURCE})
    assert {n.name for n in everything(written)} <= {n.name for n in everything(plain)} | {"h3"}
    assert written.count("&lt;script&gt;") > 20
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", written)


def test_a_long_pass_says_that_it_is_cut() -> None:
    updates = tuple(
        replace(confirmed.UPDATE, number=n, microbatches=tuple(range(4 * n - 3, 4 * n + 1)))
        for n in range(1, 31)
    )
    called = tuple(
        Moment(kind, 4 * u.number - 3 + i, 7)
        for u in updates
        for i in range(4)
        for kind in (("backward",) if i < 3 else ("backward", "step", "clear"))
    )
    done = replace(confirmed.PASS, updates=updates, moments=called)
    text = read(page([replace(confirmed.HARMLESS, passes=(done,))])).text
    assert "The first 48 of 120 are drawn." in text
    assert "The first 12 are drawn." in text


def test_nothing_to_confirm_is_a_page_too() -> None:
    assert "Nothing to confirm." in read(page([])).text


def test_the_setup_file_is_given_as_it_is() -> None:
    setup = "def setup():\n\treturn dict(\n        a=1 < 2,\n    )"
    (pre,) = read(page([replace(confirmed.UNBOUND, setup=setup)])).all("pre")
    assert pre.children[0].words == [setup]


PAIRS = [
    *((ink, "paper") for ink in ("ink", "quiet", "bad", "good", "open", "blue")),
    *((ink, "raised") for ink in ("ink", "quiet")),
    *((tone, f"{tone}-tint") for tone in ("bad", "good", "open")),
    ("ink", "bad-tint"),
    ("quiet", "bad-tint"),
    ("ink", "blue-tint"),
]


@pytest.mark.parametrize("scheme", [0, 1, 2], ids=["light", "dark", "print"])
@pytest.mark.parametrize(("ink", "paper"), PAIRS)
def test_text_stands_out_enough(ink: str, paper: str, scheme: int) -> None:
    """At least 4.5 to 1, as the Web Content Accessibility Guidelines 2.2 ask for (1.4.3)."""
    colors = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[scheme]
    lighter, darker = sorted(
        (luminance(re.findall(rf"--{name}: #(\w+);", colors)[0]) for name in (ink, paper)),
        reverse=True,
    )
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def luminance(color: str) -> float:
    digits = color if len(color) == 6 else "".join(c * 2 for c in color)
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
# Looks at the page in frames of several widths, and writes down what it sees.
LOOK = """<!doctype html><meta charset="utf-8"><pre id="seen"></pre><script>
const widths = [320, 768, 1280], seen = [];
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px";
  frame.srcdoc = %s;
  frame.onload = () => {
    const inside = frame.contentDocument, root = inside.documentElement;
    const cut = [...inside.querySelectorAll("svg text")].filter((text) => {
      const box = text.getBBox(), room = text.ownerSVGElement.viewBox.baseVal;
      return box.x < -1 || box.y < -1 || box.x + box.width > room.width + 1
        || box.y + box.height > room.height + 1;
    });
    seen.push({
      width, wide: root.scrollWidth, styled: frame.contentWindow.getComputedStyle(inside.body).maxWidth,
      svgs: inside.querySelectorAll("svg").length, cut: cut.map((text) => text.textContent),
    });
    if (seen.length === widths.length)
      document.getElementById("seen").textContent = JSON.stringify(seen);
  };
  document.body.append(frame);
}
</script>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    """Its style passes its own policy, no width makes it scroll sideways, and no text in a picture is cut off."""
    looking = LOOK % json.dumps(WHOLE).replace("</", "<\\/")
    (tmp_path / "look.html").write_text(looking, encoding="utf-8")
    seen = re.findall(r'<pre id="seen">(.*?)</pre>', browse(tmp_path, "--dump-dom", "look.html"))
    frames = json.loads(html.unescape(seen[0]))
    assert {frame["width"] for frame in frames} == {320, 768, 1280}
    for frame in frames:
        assert frame["styled"] == "1120px"
        assert frame["wide"] <= frame["width"]
        assert frame["svgs"] == WHOLE.count("<svg ")
        assert frame["cut"] == []


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
