"""A folder that stays the same one while its files are read, made and removed, whatever its path means meanwhile."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from types import TracebackType

from accumlint.files.regular import LARGEST, contents

# Windows has no paths that begin at an open folder.
_IS_HELD = os.open in os.supports_dir_fd and os.scandir in os.supports_fd


class Folder:
    """A folder, and no link to one. No file in it is reached through a link, either.

    Raises:
        OSError: where there is none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = None
        if _IS_HELD:
            self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        elif os.path.islink(path):
            raise NotADirectoryError(path)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self.handle is not None:
            os.close(self.handle)

    def names(self) -> list[str]:
        """All that is in it."""
        return os.listdir(self.path if self.handle is None else self.handle)

    def files(self) -> list[str]:
        """The regular files in it."""
        with os.scandir(self.path if self.handle is None else self.handle) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def age(self, name: str) -> float:
        """Seconds since a file was written; none for one that is gone."""
        with suppress(FileNotFoundError):
            found = os.stat(self._path(name), dir_fd=self.handle, follow_symlinks=False)
            return time.time() - found.st_mtime
        return 0

    def contents(self, name: str, most: int = LARGEST) -> bytes:
        return contents(self._path(name), most, follow=False, folder=self.handle)

    def make(self, name: str, data: bytes) -> None:
        """Writes a file that must not be there yet."""
        with open(self._path(name), "xb", opener=self._opened) as stream:
            stream.write(data)

    def replace(self, old: str, new: str) -> None:
        os.replace(self._path(old), self._path(new), src_dir_fd=self.handle, dst_dir_fd=self.handle)

    def remove(self, name: str) -> None:
        """Removes a file, unless another run did so."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(name), dir_fd=self.handle)

    def _opened(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o666, dir_fd=self.handle)

    def _path(self, name: str) -> str:
        return os.path.join(self.path, name) if self.handle is None else name
