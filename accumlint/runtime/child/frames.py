"""Locates the user's code on the call stack: the nearest user frame, and the frameworks in between."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from traceback import walk_stack
from types import FrameType
from typing import NamedTuple

# The number of user frames that identify a call path.
_DEEP = 8
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"])
_SITES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Frameworks with their own contract for backwards and steps.
_FRAMEWORKS = {
    "accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed", "trl",
}  # fmt: skip


class Location(NamedTuple):
    """A place in the user's code, its call path (`key`), and the frameworks and functions in between."""

    file: str
    line: int
    key: str
    through: tuple[str, ...]
    calls: tuple[str, ...]


def user_location() -> Location:
    """The place in the user's code that is executing."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    user_frames: list[str] = []
    through: dict[str, None] = {}
    calls: dict[str, None] = {}
    nearest = library = ("", 0)
    while frame is not None and len(user_frames) < _DEEP:
        file = frame.f_code.co_filename
        kind = _kind(file)
        if kind == "user":
            if not user_frames:
                nearest = (file, frame.f_lineno)
            user_frames.append(f"{file}:{frame.f_lineno}")
        elif kind not in ("ours", "torch"):
            if kind in _FRAMEWORKS and not user_frames:
                through[kind] = None
                calls[f"{kind}.{frame.f_code.co_name}"] = None
            if not library[1] and kind != "standard":
                library = (file, frame.f_lineno)
        frame = frame.f_back
    file, line = nearest if nearest[1] else library
    return Location(
        file, line, " ".join(user_frames) or f"{file}:{line}", tuple(through), tuple(calls)
    )


def user_frames() -> list[FrameType]:
    """The user's frames, the nearest first."""
    # `inspect.currentframe` may give None, and begins a frame too near.
    frames = walk_stack(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    return [frame for frame, _ in frames if _kind(frame.f_code.co_filename) == "user"]


@lru_cache(maxsize=4096)
def _kind(file: str) -> str:
    """The owner of a file: "user", "ours", "standard" or a package by name."""
    if file.startswith("<"):
        return "standard"
    full = os.path.abspath(file)
    if full.startswith(_OURS + os.sep):
        return "ours"
    for folder in _SITES:
        if folder in full:
            package, *inner = full.rpartition(folder)[2].split(os.sep)
            if package == "lightning" and inner[:1] == ["fabric"]:
                return "lightning_fabric"
            return package.removesuffix(".py")
    return "standard" if full.startswith(_STANDARD + os.sep) else "user"
