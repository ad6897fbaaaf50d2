"""Runs the command inside the tests' process."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import Ran

from accumlint.cli import main

Run = Callable[..., Ran]

# Each of the many processes that tests start would compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest tests where the two processes begin, so that none of them is left for the end."""
    long = [item for item in items if item.get_closest_marker("long")]
    short = [item for item in items if not item.get_closest_marker("long")]
    half = len(short) // 2
    items[:] = [*long[::2], *short[:half], *long[1::2], *short[half:]]


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for each test; the factory's own numbering lists all that it has made before."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def cache_home(homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test's user for caches."""
    home = next(homes)
    home.mkdir()
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(home))
    return home / "accumlint"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, run in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Ran(end.value.code, out, err)

    return run
