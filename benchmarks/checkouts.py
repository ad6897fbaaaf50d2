"""Writes labelled files, alone and in their projects, from git repositories that are fetched where they are missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from labelled import InputError, Source

ALONE, PROJECT = "alone", "project"
# Python's files and the texts that accumlint reads beside them: where a project begins, what it installs and with which
# settings it trains. Nothing is installed.
_READ = re.compile(
    r"\.(py|sh|ya?ml|toml|cfg|in)$|(^|/)(dockerfile|install|readme)[^/]*$|(^|requirement)[^/]*\.txt$",
    re.IGNORECASE,
)
# A repository that is gone must not ask for a password.
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}

_ELSEWHERE = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"})


class GitError(Exception):
    """What git said when it failed, in one line."""


def write(
    sources: Iterable[Source], repositories: Path, files: Path, host: str | None
) -> Iterator[str]:
    """Writes each file to `files/alone` and what is read of its commit to `files/project`; yields what failed.

    Repositories are `repositories/OWNER/NAME`, bare or not; commits that are missing there are fetched from
    `host/OWNER/NAME` unless it is None. What was written earlier is kept.
    """
    by_commit: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for source in sources:
        by_commit[source.repository, source.commit, source.folder].add(source.path)
    for (repository, commit, folder), paths in by_commit.items():
        project = files / PROJECT / folder
        try:
            if not project.is_dir():
                _write_project(repositories / repository, repository, commit, host, project)
        except GitError as error:
            yield f"{repository} {commit[:10]}: {error}"
            continue
        alone = files / ALONE / folder
        _begin(alone)
        for path in sorted(paths):
            if not (project / path).is_file():
                yield f"{repository} {commit[:10]}: {path} is not there"
            elif not (target := alone / path).is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(project / path, target)


def _write_project(
    home: Path, repository: str, commit: str, host: str | None, project: Path
) -> None:
    if host is None and not home.is_dir():
        raise GitError(f"{home} is no folder")
    if host is not None and not _has(home, commit):
        _fetch(home, f"{host.rstrip('/')}/{repository}", commit)
    wanted = dict(_files(home, commit))
    if host is not None and wanted:
        # One request for all contents: git alone would ask for each of them.
        objects = "\n".join(sorted(set(wanted.values())))
        options = ["--no-tags", "--no-write-fetch-head", "--filter=blob:none"]
        _git(home, "fetch", "-q", *options, "origin", "--stdin", text=objects.encode())
    # Under another name until it is whole: a run that is cut short must not leave half a project.
    part = project.with_name(project.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    _begin(part)
    for path, content in _contents(home, wanted):
        target = part / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    part.rename(project)


def _begin(folder: Path) -> None:
    """Makes a folder that linters take for the top of a repository, wherever it lies."""
    (folder / ".git").mkdir(parents=True, exist_ok=True)


def _has(home: Path, commit: str) -> bool:
    if not home.is_dir():
        return False
    try:
        # Of a repository fetched in parts, other commands would fetch the commit with all its history.
        return bool(_git(home, "rev-list", "-1", "--missing=allow-any", commit))
    except GitError:
        return False


def _fetch(home: Path, url: str, commit: str) -> None:
    """Fetches one commit without its history and without contents of files."""
    if not home.is_dir():
        home.mkdir(parents=True)
        _git(home, "init", "-q", "--bare")
    _git(home, "config", "remote.origin.url", url)
    _git(home, "fetch", "-q", "--depth", "1", "--no-tags", "--filter=blob:none", "origin", commit)


def _files(home: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Paths and object names of the regular files to be written."""
    for entry in _git(home, "ls-tree", "-r", "-z", commit).split(b"\0")[:-1]:
        kind, _, name = entry.partition(b"\t")
        mode, _, blob = kind.decode().split()
        path = name.decode(errors="surrogateescape")
        parts = PurePosixPath(path).parts
        # Links could lead anywhere, and so could a tree that someone made for that.
        if not mode.startswith("100") or not {"..", ".git", "/"}.isdisjoint(parts):
            continue
        if _READ.search(path):
            yield path, blob


def _contents(home: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    names = "\n".join(wanted.values())
    told = _git(home, "cat-file", "--batch", text=names.encode()) if wanted else b""
    at = 0
    for path in wanted:
        end = told.index(b"\n", at)
        head = told[at:end].split()
        at = end + 1
        if head[-1] != b"missing":
            size = int(head[2])
            yield path, told[at : at + size]
            at += size + 1


def _git(home: Path, *arguments: str, text: bytes = b"") -> bytes:
    command = ["git", "-C", str(home), *arguments]
    # Whatever repository the caller is in, only this one is meant.
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    environment |= {**_ENVIRONMENT, "GIT_CEILING_DIRECTORIES": str(home.absolute().parent)}
    try:
        ran = subprocess.run(command, input=text, capture_output=True, check=False, env=environment)
    except FileNotFoundError:
        raise InputError("git is not installed") from None
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        raise GitError(lines[-1] if lines else f"git ends with {ran.returncode}")
    return ran.stdout
