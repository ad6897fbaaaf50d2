"""Asks git about a repository, so that nothing that the repository holds or names is executed.

Git is called for the folder above the working directory that holds `.git`, never for a folder that merely looks like a
repository. Only what is stored is read: no file of the working tree passes through git, whose filters, drivers and
monitors are commands of the repository's choice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse

# What git may know of the environment: where the user's settings and temporary files are.
_KEPT = ("HOME", "SUDO_UID", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "USERPROFILE", "XDG_CONFIG_HOME")  # fmt: skip
_FIXED = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
# These overrule the repository's own settings.
_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    f"core.attributesFile={os.devnull}",
    "core.pager=cat",
    "core.sshCommand=false",
    "credential.helper=",
    "diff.external=",
    "protocol.allow=never",
)
_TOLD = 10_000
_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color")
_SECONDS = 60.0
# So much is taken of what a command prints: a commit may hold a few objects that unfold to any number of paths.
_MOST = 128 * 1024 * 1024


class GitError(Misuse):
    """Git cannot answer; the message says why."""


@frozen
class Git:
    """The repository whose `.git` stands in a folder."""

    top: str

    def ask(self, *arguments: str) -> bytes:
        """What a git command prints.

        Raises:
            GitError: with git's own words, when it fails.
        """
        return _run(self.top, arguments)

    def commit(self, revision: str) -> str:
        """The name of a revision's commit, "" where there is none."""
        self.ask("rev-parse", "--git-dir")
        asked = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            return self.ask("rev-parse", *asked).decode().strip()
        except GitError:
            return ""

    @property
    def is_shallow(self) -> bool:
        """True where the history ends before its beginning, as in a checkout of CI."""
        return self.ask("rev-parse", "--is-shallow-repository").strip() == b"true"

    def files(self, commit: str) -> dict[str, str]:
        """The files of a commit by their paths, each with the name of its contents."""
        entries = self.ask("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")
        rows = (entry.partition(b"\t") for entry in entries)
        # Links and submodules have other modes.
        return {
            os.fsdecode(path): head.split()[2].decode()
            for head, _, path in rows
            if head.startswith(b"100")
        }

    def moved(self, commit: str) -> dict[str, str]:
        """The files that were renamed since a commit by their new paths, each with the name of its old contents."""
        options = ("--cached", "--raw", "-z", "--no-abbrev", "-M", "--ignore-submodules=all")
        fields = iter(self.ask("diff-index", *options, *_DIFF, commit).split(b"\0"))
        moved: dict[str, str] = {}
        for head in fields:
            # ":mode mode contents contents status", then a path, of a renamed file two.
            words = head.split()
            path = next(fields, b"")
            if words and words[-1].startswith((b"R", b"C")):
                path = next(fields, b"")
                moved[os.fsdecode(path)] = words[2].decode()
        return moved

    def contents(self, name: str) -> bytes:
        return self.ask("cat-file", "blob", name)


def around(folder: str) -> Git:
    """The repository around a folder.

    Raises:
        GitError: when there is none, or no git.
    """
    _program()
    here = Path(folder).resolve()
    for home in (here, *here.parents):
        if (home / ".git").exists():
            return Git(str(home))
    raise GitError("not a git repository (or any of the parent directories)")


def patch(before: bytes, after: bytes) -> bytes:
    """What changed from one text to another, as a patch without context."""
    with tempfile.TemporaryDirectory(prefix="accumlint-") as folder:
        for name, text in (("before", before), ("after", after)):
            Path(folder, name).write_bytes(text)
        options = ("--no-index", "--text", "-U0", "--inter-hunk-context=0", *_DIFF)
        return _run(os.path.realpath(folder), ("diff", *options, "before", "after"), fine=(0, 1))


def _run(folder: str, arguments: Sequence[str], fine: tuple[int, ...] = (0,)) -> bytes:
    program, path = _program()
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {**_FIXED, "PATH": path, "GIT_CEILING_DIRECTORIES": os.path.dirname(folder)}
    settings = (word for setting in _SETTINGS for word in ("-c", setting))
    with tempfile.TemporaryFile() as errors:
        try:
            running = subprocess.Popen(
                [program, "--no-pager", *settings, *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        except OSError as problem:
            raise GitError(f"git cannot be run: {problem.strerror or problem}") from None
        late = threading.Event()

        def end() -> None:
            late.set()
            running.kill()

        timer = threading.Timer(_SECONDS, end)
        timer.start()
        try:
            assert running.stdout is not None
            printed = running.stdout.read(_MOST + 1)
            if len(printed) > _MOST:
                raise GitError(f"git {arguments[0]} prints more than {_MOST // 1024 // 1024} MiB")
            code = running.wait()
        finally:
            timer.cancel()
            running.kill()
            running.communicate()
        if late.is_set():
            raise GitError(f"git {arguments[0]} took longer than {_SECONDS:.0f} seconds")
        if code not in fine:
            errors.seek(0)
            told = errors.read(_TOLD).decode(errors="replace").strip().splitlines()
            raise GitError(
                told[0].removeprefix("fatal: ") if told else f"git {arguments[0]} failed"
            )
        return printed


def _program() -> tuple[str, str]:
    """Git, and the folders of programs, none of which is relative: it might lie in the tree."""
    path = os.pathsep.join(filter(os.path.isabs, os.get_exec_path()))
    program = shutil.which("git", path=path) if path else None
    if program is None or not os.path.isabs(program):
        raise GitError("git cannot be run: there is no git on PATH")
    return program, path
