"""What several tests need: a defective loop, the markers of a source, and a file's findings."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumlint.check import Shared, check_bytes
from accumlint.common.examples import ORDER as ORDER
from accumlint.common.examples import blocks as blocks
from accumlint.common.examples import markers as markers
from accumlint.config import Settings
from accumlint.files.inputs.cache import KEY, signed
from accumlint.files.inputs.discovery import Target

ROOT = Path(__file__).parents[1]
# The folder of sources that stand alone. It does not exist: the folders around a file are searched for its project.
NOWHERE = Path("/nowhere")
# What the tests of a process read of the project around the fixtures.
AROUND_FIXTURES = Shared()

# One defect, on the line that says so; every other line is right.
LOOP = """\
import torch.nn.functional as F


def train(model, loader, optimizer, accumulation_steps):
    batches = iter(loader)
    for _ in range(len(loader) // accumulation_steps):
        optimizer.zero_grad()
        for _ in range(accumulation_steps):
            images, labels = next(batches)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()  # error: ACC102
        optimizer.step()
"""
FLAGGED = 11

_WHOLE_MARKER = re.compile(r"  # error: [A-Z0-9, ]+$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """A command's end: exit code and what it wrote."""

    code: int
    out: str
    err: str


def unmarked(source: str) -> str:
    """The source without its markers."""
    return _WHOLE_MARKER.sub("", source)


def alone(name: str = "train.py", **settings: Any) -> Target:
    """A file that stands alone, with these settings; where the name is absolute, the file at that path."""
    return Target(name, str(NOWHERE / name), Settings(NOWHERE, **settings))


def findings(source: str, name: str = "train.py", also: str = "") -> set[tuple[int, str]]:
    """Line and code of each finding under all rules that are not opt-in, and the rule `also`.

    The source must be readable. An absolute name is the path of a file whose project is read as well.
    """
    target = alone(name, extend_select=(also,) if also else ())
    # Other projects may change from one call to the next.
    shared = AROUND_FIXTURES if Path(name).is_relative_to(ROOT) else None
    checked = check_bytes(source.encode(), target, shared)
    assert checked.problems == ()
    return {(report.mark.place.line, report.code) for report in checked.reports}


def cached(file: Path) -> dict[str, Any]:
    """What a file of the cache holds."""
    return json.loads(file.read_text().splitlines()[0])


def put_into_cache(file: Path, held: object) -> None:
    """Writes a file of the cache as who knows the user's key would."""
    key = Path(os.environ["XDG_CACHE_HOME"], "accumlint", KEY).read_bytes()
    file.write_bytes(signed(held if isinstance(held, str) else json.dumps(held), file.name, key))
