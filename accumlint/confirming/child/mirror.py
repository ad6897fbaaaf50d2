"""A folder like the one that a script works in, with links to its files: what is written beside them goes elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path

# A folder with more in it is a link itself, and may only be read.
_MOST = 3000


def mirrored(source: Path, folder: Path) -> list[str]:
    """Makes `folder` look like `source`; gives the folders below that became links, where nothing can be written."""
    folder.mkdir()
    left_out: list[str] = []
    made = 0
    waiting = deque([(source, folder)])
    while waiting:
        here, there = waiting.popleft()
        try:
            entries = list(os.scandir(here))
        except OSError:
            continue
        for entry in entries:
            to = there / entry.name
            made += 1
            is_folder = entry.is_dir(follow_symlinks=False) and entry.name != ".git"
            # What cannot be made a link is not there for the script; it says so itself.
            with contextlib.suppress(OSError):
                if is_folder and made < _MOST:
                    to.mkdir()
                    waiting.append((Path(entry.path), to))
                else:
                    to.symlink_to(entry.path)
                    if is_folder:
                        left_out.append(entry.path)
    return left_out
