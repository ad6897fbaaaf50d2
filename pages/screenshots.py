"""Makes the pictures of the documentation: a loop, the pages of `trace` and `check`, the site's home, light and dark.

    mkdocs build --strict && python pages/screenshots.py

Needs Chromium; Pillow makes the files smaller where it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from generate import SCHEMES, in_scheme

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FOUND = (
    "fixtures/sample",
    "fixtures/acc302/bad_tests_other_index.py",
    "fixtures/acc402",
    "fixtures/acc501",
)


def accumlint(*arguments: str) -> None:
    """Runs accumlint in the project's folder; findings are no failure."""
    command = [sys.executable, "-m", "accumlint", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if ran.returncode > 1:
        sys.exit(ran.stderr.decode())


def shoot(page: Path, name: str, width: int, height: int) -> None:
    """The top of a page in both schemes."""
    for scheme in SCHEMES:
        file = PICTURES / f"{name}-{scheme}.png"
        with tempfile.TemporaryDirectory() as profile:
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--virtual-time-budget=8000",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--blink-settings=preferredColorScheme={1 - SCHEMES.index(scheme)}",
                f"--screenshot={file}",
            ]
            command: Sequence[str] = [CHROMIUM, *options, page.as_uri()]
            subprocess.run(command, capture_output=True, check=True, timeout=120)
        smaller(file)


def smaller(file: Path) -> None:
    """A picture of few colours needs no more than 256."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(file).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        file, optimize=True
    )


def main() -> None:
    if not CHROMIUM:
        sys.exit("Chromium is needed: apt install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        accumlint(
            "trace",
            "fixtures/sample/train_lm.py",
            "--select",
            "ACC102",
            "--output",
            f"svg={work / 'loop.svg'}",
        )
        for scheme in SCHEMES:
            drawn = in_scheme((work / "loop.svg").read_text(encoding="utf-8"), scheme)
            (PICTURES / f"loop-{scheme}.svg").write_text(drawn, encoding="utf-8")
        leaking = "fixtures/acc501/bad_leaks_into_next_epoch.py"
        accumlint("trace", leaking, "--output", f"html={work / 'trace.html'}")
        shoot(work / "trace.html", "trace", 1200, 940)
        accumlint("check", *FOUND, "--output", f"html={work / 'report.html'}")
        shoot(work / "report.html", "report", 1280, 1240)
    home = ROOT / "build" / "site" / "index.html"
    if home.exists():
        shoot(home, "home", 1300, 860)


if __name__ == "__main__":
    main()
