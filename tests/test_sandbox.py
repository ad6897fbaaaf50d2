"""What hostile code gets from a run: nothing, or what is told before it starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from accumlint.confirming import sandbox
from accumlint.confirming.sandbox import Run, Sandbox, project, unprotected

ZOO = ROOT / "fixtures" / "hostile"
PREFIX = "accumlint: not protected on this machine: "
SECRET = "hunter2"
# Each with the beginning of the line that tells where nothing stops it.
ACTS = {
    "reads_a_key": "reads",
    "reads_a_key_through_a_link": "reads",
    "reads_another_checkout": "reads",
    "lists_home": "reads",
    "reads_shadow": "reads",
    "looks_for_secrets_in_environments": "reads",
    "writes_natively": "writes",
    "removes_natively": "writes",
    "changes_a_mode_natively": "writes",
    "writes_a_huge_file": "disk",
    "connects_natively": "network",
    "sends_a_datagram_natively": "network",
    "connects_by_sending": "network",
    "connects_by_many_paths": "network",
    "connects_to_a_local_service": "network",
    "bombs": "processes",
    "clones": "processes",
    "executes": "processes",
    "executes_from_memory": "processes",
    "forks_by_another_table": "processes",
    "reads_its_parents_memory": "processes",
    "looks_into_the_keyring": "processes",
    "types_into_the_terminal": "processes",
    "kills_its_parent_natively": "signals",
    "has_the_kernel_kill_its_parent": "signals",
    "limits_its_parent": "signals",
    "slows_its_parent": "signals",
    "pins_its_parent": "signals",
    "traces_its_parent": "signals",
    "outlives_its_parent": "processes",
    "makes_a_namespace": "processes",
    "makes_a_ring": "processes",
    "writes_a_result": "results",
}
# Those that end otherwise, with the verdict and the reason, or its beginning.
OTHERS = {
    "silences_the_recorder": (
        "undecided",
        "the loop replaced `accumlint.confirming.harness.recording.recorder.Recorder.note`, "
        "so nothing that it noted counts",
    ),
    "sends_a_result": (
        "undecided",
        "the loop wrote a result of its own, so nothing that it noted counts",
    ),
    "writes_many_files": ("undecided", "the loop wrote more than a run may"),
    "raises_commands": (
        "undecided",
        "the loop did not run with fakes: RuntimeError at line 13",
    ),
    "prints_without_end": ("confirmed", ""),
    "keeps_threads": ("confirmed", ""),
}
TELLS = "the code uses ctypes, by which it could change what is recorded"
# Runs the command as on a machine that has no more than this.
LIMITED = """
import json, sys
from accumlint.confirming import sandbox
has = sandbox.Sandbox(**json.loads(sys.argv.pop(1)))
sandbox.available = lambda: has
from accumlint.cli import main
main()
"""
NAMESPACES = "without bubblewrap"
HERE = sandbox.available()
WHOLE = "this machine"
# Asked for by CI.
BARE = "without namespaces"
MACHINES = {
    WHOLE: HERE,
    NAMESPACES: Sandbox(HERE.landlock, HERE.seccomp, "", bool(HERE.bubblewrap) or HERE.namespaces),
    BARE: Sandbox(HERE.landlock, HERE.seccomp),
}
# Machines that differ, each under its first name.
DIFFERENT = [
    pytest.param(name, id=name, marks=pytest.mark.whole if name == BARE else ())
    for number, (name, has) in enumerate(MACHINES.items())
    if has not in list(MACHINES.values())[:number]
]


def made(folder: Path, act: str) -> Path:
    """A project of its own whose loop calls an act, and its file."""
    own = folder / act
    own.mkdir()
    shutil.copy(ZOO / "zoo.py", own)
    (own / "kept").touch()
    (own / "link").symlink_to(folder / "home" / ".ssh" / "id_ed25519")
    train = own / "train.py"
    text = (ZOO / "train.py").read_text()
    train.write_text(
        text.replace("from acts import nothing as weight", f"from zoo import {act} as weight")
    )
    return train


def command(folder: Path, has: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ, "TMPDIR": str(temporary), "HOME": str(folder / "home"), "API_TOKEN": SECRET, "PASSPHRASE": SECRET,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", LIMITED, json.dumps(asdict(has)), "confirm", "--isolated", *arguments],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a home, another checkout, and somebody who listens."""
    keys = tmp_path / "home" / ".ssh"
    keys.mkdir(parents=True)
    (keys / "id_ed25519").write_text(SECRET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "settings.py").write_text(SECRET)
    with socket.socket() as listening, socket.socket(socket.AF_UNIX) as service:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        (tmp_path / "port").write_text(str(listening.getsockname()[1]))
        # Paths of sockets are short.
        monkeypatch.chdir(tmp_path)
        service.bind("service")
        service.listen()
        yield tmp_path


def environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def left_running(folder: Path) -> list[str]:
    """The processes of a run: their environment names its temporary folder."""
    mark = str(folder / "temporary").encode() + b"/accumlint-"
    return [p.name for p in Path("/proc").glob("[0-9]*") if mark in environment(p)]


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.parametrize(
    "every", [3, pytest.param(1, marks=pytest.mark.whole)], ids=["every third", "all"]
)
@pytest.mark.parametrize("machine", DIFFERENT)
def test_the_zoo(folder: Path, machine: str, every: int) -> None:
    pytest.importorskip("torch")
    has = MACHINES[machine]
    # Namespaces alone differ from bubblewrap by what they do about the network.
    acts = {act: kind for act, kind in ACTS.items() if kind == "network" or machine != NAMESPACES}
    # The harness holds the others, whatever the machine has.
    others = OTHERS if machine == WHOLE else {}
    acts, others = dict([*acts.items()][::every]), dict([*others.items()][::every])
    files = [str(made(folder, act)) for act in (*acts, *others)]
    for file in files:
        shutil.copy(folder / "port", Path(file).parent)
    done = command(folder, has, *files, "--output-format", "json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = {
        Path(one["filename"]).parent.name: one for one in json.loads(done.stdout)
    }
    told = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if PREFIX in line]
    assert {tuple(one["unprotected"]) for one in found.values()} == {tuple(told)}
    for act, kind in acts.items():
        reason = found[act]["reason"]
        stopped = (
            reason.endswith(": refused") or "tried something that the sandbox refuses" in reason
        )
        assert stopped or any(line.startswith(kind) for line in told), (act, reason)
        assert SECRET not in reason
    for act, (verdict, reason) in others.items():
        assert found[act]["verdict"] == verdict, found[act]["reason"]
        assert found[act]["reason"].startswith(reason)
        assert len(found[act]["reason"]) < 500
        if verdict == "confirmed":
            assert TELLS in found[act]["also"]
    if has.landlock >= 6 and has.seccomp:
        held = [] if has.isolated else ["shared memory"]
        assert [line.split(":")[0] for line in told] == held
    until = time.monotonic() + 30
    while left_running(folder) and time.monotonic() < until:
        time.sleep(0.1)
    assert left_running(folder) == []
    assert not list(folder.glob("*/left"))


@pytest.mark.torch
def test_signals_ignored_and_commands_to_a_terminal(folder: Path) -> None:
    pytest.importorskip("torch")
    files = [str(made(folder, act)) for act in ("ignores_signals", "raises_commands")]
    named = folder / "\x1b[2J::error::x"
    Path(files[1]).parent.rename(named)
    files[1] = str(named / "train.py")
    done = command(folder, HERE, *files, "--timeout", "3", "--html", "page.html")
    assert done.returncode == 4, done.stderr
    assert "did not end within 3 s" in done.stdout
    page = (folder / "page.html").read_text()
    for text in (done.stdout, done.stderr, page):
        assert not {"\x1b", "\x07", "\x9b"} & set(text)
        assert not any(line.startswith("::") for line in text.splitlines())
    assert left_running(folder) == []


@pytest.mark.parametrize(
    ("has", "run", "kinds"),
    [
        (Sandbox(7, True, "/usr/bin/bwrap"), Run(), []),
        (Sandbox(7, True, "", True), Run(), []),
        (Sandbox(7, True), Run(), ["shared memory"]),
        (Sandbox(7, True), Run(ranks=2), ["network", "shared memory"]),
        (Sandbox(3, True), Run(), ["network", "shared memory"]),
        (Sandbox(0, True, "/usr/bin/bwrap"), Run(), ["results"]),
        (Sandbox(7, False, "/usr/bin/bwrap"), Run(), ["processes"]),
        (Sandbox(5, False), Run(), ["network", "processes", "signals", "shared memory"]),
        (Sandbox(), Run(), ["reads", "writes", "network", "processes", "signals", "shared memory"]),
        (Sandbox(7, True, "/usr/bin/bwrap"), Run(gpu=True), ["memory"]),
    ],
)  # fmt: skip
def test_what_a_machine_leaves_open(has: Sandbox, run: Run, kinds: list[str]) -> None:
    assert [line.split(":")[0] for line in unprotected(has, run)] == kinds


def test_what_a_project_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    inner = home / "checkout" / "src" / "package"
    inner.mkdir(parents=True)
    (home / "checkout" / ".git").mkdir()
    (home / ".git").mkdir()
    (home / "library").mkdir()
    for file in (
        home / "library" / "__init__.py",
        home / "train.py",
        home / "beside.py",
        home / "notes",
    ):
        file.touch()
    monkeypatch.setenv("HOME", str(home))
    assert project(str(inner / "train.py"), ()) == ([str(home / "checkout")], [])
    # What lies in the home itself brings modules and packages beside it along, and nothing else of the home.
    readable, listable = project(str(home / "train.py"), (str(home),))
    assert {*readable} == {str(home / name) for name in ("train.py", "beside.py", "library")}
    assert listable == [str(home)]
