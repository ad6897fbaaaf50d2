"""Every page stands alone and can be read by anyone and on anything."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import confirmed
import pytest
from documents import BROWSER, browse, everything, read
from helpers import LOOP, ROOT

from accumlint import check, config
from accumlint.confirming.reports.html_report import page as confirmations
from accumlint.diagnostics.drawing import traced_loops
from accumlint.diagnostics.drawing.loops_page import page as loops
from accumlint.diagnostics.drawing.stylesheet import STYLE
from accumlint.diagnostics.reporting import reporter
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.diagram import Loop
from accumlint.diagnostics.results.measured import Measured, Update, Weight
from accumlint.diagnostics.results.report import Checked
from accumlint.files.inputs import discovery

# One of each kind: several optimizers, several ranks, partial windows, nothing cleared, another file.
SHOWN = (
    "sample/train_lm.py",
    "clean/gan_accumulating.py",
    "clean/token_window_over_ranks.py",
    "acc302/bad_tests_other_index.py",
    "acc401/bad_cleared_once.py",
    "acc402/bad_top_of_modulo_loop.py",
    "acc501/bad_leaks_into_next_epoch.py",
    "acc102/bad_backward_in_another_file/main.py",
)


def targets() -> list[discovery.Target]:
    paths = [str(ROOT / "fixtures" / name) for name in SHOWN]
    found, problems = discovery.find(paths, config.Options(isolated=True))
    assert problems == []
    return found


def shown() -> list[Loop]:
    held = (traced_loops.show(Path(target.file).read_bytes(), target) for target in targets())
    return [paths[0] for file in held for paths in file.loops]


def html_of(some: list[discovery.Target]) -> str:
    results: list[Checked] = list(check.check(some, illustrate=traced_loops.illustrate))
    return "\n".join(reporter("html")(results, Look(root=ROOT)))


def findings() -> str:
    return html_of(targets())


def run_page() -> str:
    """Findings with the figures of a run: several ranks, many updates, gaps, a clip."""
    results = [*check.check(targets()[:4], illustrate=traced_loops.illustrate)]
    weights = tuple(Weight(rank, 1, 8, 0.1 + rank, 0.1, 2.0) for rank in range(2))
    updates = [
        Update(12, 2, 1e6 * n, 2e6 * n, None if n % 7 == 3 else 1e-3 * n, 0.5, weights)
        for n in range(300)
    ]
    figures = [
        Measured("torch.optim.sgd.SGD", "train.py", 2, 64, tuple(some))
        for some in (updates, updates[:7], updates[:1], [])
    ]
    results[-1] = replace(results[-1], measured=tuple(figures))
    return "\n".join(reporter("html")(results, Look(root=ROOT)))


@pytest.fixture(scope="module", params=["confirm", "trace", "check", "run"])
def whole(request: pytest.FixtureRequest) -> str:
    source = "\n".join(f"    line_{number} = None" for number in range(1, 100))
    return {
        "confirm": lambda: confirmations(confirmed.ALL, {"train.py": source}),
        "trace": lambda: loops(shown()),
        "check": findings,
        "run": run_page,
    }[request.param]()


def test_it_needs_nothing_from_elsewhere(whole: str) -> None:
    for node in everything(whole):
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


def test_its_policy_allows_its_own_style_and_no_more(whole: str) -> None:
    (policy,) = (
        node.attributes["content"]
        for node in everything(whole)
        if node.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = read(whole).all("style")
    digest = base64.b64encode(hashlib.sha256("".join(style.words).encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_ids_are_unique_and_references_lead_somewhere(whole: str) -> None:
    nodes = everything(whole)
    ids = Counter(node.attributes["id"] for node in nodes if "id" in node.attributes)
    assert set(ids.values()) == {1}
    for node in nodes:
        for name in node.attributes.get("aria-labelledby", "").split():
            assert name in ids
        if "href" in node.attributes:
            assert node.attributes["href"][1:] in ids


def test_headings_leave_no_level_out(whole: str) -> None:
    levels = [int(node.name[1]) for node in read(whole).all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_every_picture_says_what_it_shows_and_every_table_too(whole: str) -> None:
    root = read(whole)
    drawn = [svg for svg in root.all("svg") if svg.attributes.get("aria-hidden") != "true"]
    assert len(drawn) > 3
    for picture in drawn:
        title, told = picture.children[:2]
        assert (title.name, told.name) == ("title", "desc")
        assert len(title.text) > 8
        assert len(told.text) > 8
        assert picture.attributes["role"] == "img"
        assert picture.attributes["aria-labelledby"].split() == [
            title.attributes["id"],
            told.attributes["id"],
        ]
    assert len(root.all("table")) > 3
    for table in root.all("table"):
        assert table.children[0].name == "caption"
        assert table.children[0].text.strip()
        assert all(node.attributes["scope"] in ("col", "row") for node in table.all("th"))
        (head,) = table.all("thead")
        columns = len(head.all("th"))
        (body,) = table.all("tbody")
        assert all(len(row.children) == columns for row in body.all("tr"))


def test_everything_that_scrolls_can_be_reached_by_keyboard(whole: str) -> None:
    for node in everything(whole):
        if node.name == "pre" or node.attributes.get("class") == "scroll":
            assert node.attributes["tabindex"] == "0"
            assert node.attributes["aria-label"]


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
def test_a_browser_shows_it(tmp_path: Path, whole: str) -> None:
    """Its style passes its own policy, no width makes it scroll sideways, and no text in a picture is cut off."""
    looking = LOOK % json.dumps(whole).replace("</", "<\\/")
    (tmp_path / "look.html").write_text(looking, encoding="utf-8")
    seen = re.findall(r'<pre id="seen">(.*?)</pre>', browse(tmp_path, "--dump-dom", "look.html"))
    frames = json.loads(html.unescape(seen[0]))
    assert {frame["width"] for frame in frames} == {320, 768, 1280}
    for frame in frames:
        assert frame["styled"] in ("1120px", "1440px")
        assert frame["wide"] <= frame["width"]
        assert frame["svgs"] == whole.count("<svg ")
        assert frame["cut"] == []


EVIL = "</style></title><script>alert(1)</script><b onclick='x'>&\"]]>--><!--"
HOSTILE = LOOP.replace("import torch", f"# {EVIL}\nimport torch").replace(
    "loss.backward()", f"loss.backward()  # {EVIL}"
)


@pytest.mark.parametrize("kind", ["trace", "check"])
def test_nothing_written_in_a_source_becomes_part_of_a_page(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "<b onclick='x'>&\u202e.py"
    file.write_text(HOSTILE)
    (target,), _ = discovery.find([str(file)], config.Options(isolated=True))
    told = {
        "trace": lambda: loops([p[0] for p in traced_loops.show(file.read_bytes(), target).loops]),
        "check": lambda: html_of([target]),
    }[kind]()
    names = {node.name for node in everything(told)}
    assert "script" not in names
    assert "&lt;script&gt;" in told
    assert not {"onclick"} & {name for node in everything(told) for name in node.attributes}
    assert "\u202e" not in told


def test_a_run_with_two_hundred_findings_is_a_page_that_can_be_opened() -> None:
    (result,) = check.check(targets()[-1:], illustrate=traced_loops.illustrate)
    report = result.reports[0]
    many = tuple(
        replace(report, file=f"/src/part{n // 5}.py", shown=f"part{n // 5}.py") for n in range(200)
    )
    page = "\n".join(reporter("html")([replace(result, reports=many)], Look(root=Path("/src"))))
    nodes = everything(page)
    assert sum(node.name == "article" for node in nodes) == 200
    ids = Counter(node.attributes["id"] for node in nodes if "id" in node.attributes)
    assert set(ids.values()) == {1}
    assert len(page) < 5_000_000


def test_severities_can_be_chosen_without_a_script() -> None:
    root = read(findings())
    switches = {node.attributes["id"] for node in root.all("input")}
    assert switches == {"only-all", "only-error", "only-warning"}
    for switch in switches - {"only-all"}:
        assert f"body:has(#{switch}:checked)" in STYLE
