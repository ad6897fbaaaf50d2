"""Where the user's code stands: the nearest frame that belongs to no library, and the libraries on the way."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

# As many frames of the user's tell two calls apart.
_DEEP = 8
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"])
_SITES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# What a backward or a step may go through that has a contract of its own.
_FRAMEWORKS = {
    "accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed", "trl",
}  # fmt: skip


class Where(NamedTuple):
    """A place in the user's code.

    `key` tells one way to get there from another, `through` the frameworks between, and `calls` their functions.
    """

    file: str
    line: int
    key: str
    through: tuple[str, ...]
    calls: tuple[str, ...]


def where() -> Where:
    """The place in the user's code that is being executed."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    own: list[str] = []
    through: dict[str, None] = {}
    calls: dict[str, None] = {}
    nearest = library = ("", 0)
    while frame is not None and len(own) < _DEEP:
        file = frame.f_code.co_filename
        kind = _kind(file)
        if kind == "own":
            if not own:
                nearest = (file, frame.f_lineno)
            own.append(f"{file}:{frame.f_lineno}")
        elif kind not in ("ours", "torch"):
            if kind in _FRAMEWORKS and not own:
                through[kind] = None
                calls[f"{kind}.{frame.f_code.co_name}"] = None
            if not library[1] and kind != "standard":
                library = (file, frame.f_lineno)
        frame = frame.f_back
    file, line = nearest if nearest[1] else library
    return Where(file, line, " ".join(own) or f"{file}:{line}", tuple(through), tuple(calls))


def users() -> list[FrameType]:
    """The frames of the user's, the nearest first."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    found: list[FrameType] = []
    while frame is not None:
        if _kind(frame.f_code.co_filename) == "own":
            found.append(frame)
        frame = frame.f_back
    return found


@lru_cache(maxsize=4096)
def _kind(file: str) -> str:
    """Whose a file is: "own", "ours", "standard" or a package's by name."""
    if file.startswith("<"):
        return "standard"
    full = os.path.abspath(file)
    if full.startswith(_OURS + os.sep):
        return "ours"
    for site in _SITES:
        if site in full:
            package, *inner = full.rpartition(site)[2].split(os.sep)
            if package == "lightning" and inner[:1] == ["fabric"]:
                return "lightning_fabric"
            return package.removesuffix(".py")
    return "standard" if full.startswith(_STANDARD + os.sep) else "own"
