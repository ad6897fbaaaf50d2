"""Finds the installed rules by the entry-point group `accumlint.rules`, and those that a user selects.

Each entry point names a package; every module `acc102_loss_not_divided.py` in it holds one rule, whose code and name
the file name tells. So rules are listed and selected without importing them, and only selected ones are imported.
Folders with such modules can be added, which nobody has to install.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from accumlint.common.frozen import frozen
from accumlint.common.problem import Misuse

if TYPE_CHECKING:
    from pathlib import Path

    from accumlint.rule import Rule

GROUP = "accumlint.rules"
_MODULE = re.compile(r"([a-z]+[0-9]+)_(\w+)\.py")
_EXACT = 1_000
# The folders that were added, by the name of the package that each became.
_ADDED: dict[str, str] = {}


class PackError(Misuse):
    """The installed rules are not what they must be; the message says how to mend it."""


class UnknownSelector(Misuse):
    """A selector names no rule."""

    def __init__(self, selector: str) -> None:
        super().__init__(f"{selector!r} names no rule; {suggestion(selector)}")
        self.selector = selector


@dataclass(frozen=True, order=True)
class Entry:
    """One installed rule, not imported yet."""

    code: str
    name: str
    module: str


@frozen
class Selection:
    """The rules to run. `named` are those that were asked for by code or by name."""

    entries: tuple[Entry, ...]
    named: frozenset[Entry]

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The selected rules, imported, without the opt-in rules that nobody named."""
        loaded = ((entry, rule(entry)) for entry in self.entries)
        return tuple(found for entry, found in loaded if entry in self.named or not found.opt_in)


def add(added: Iterable[Path]) -> None:
    """Makes the rules of some folders, which are no installed packages, part of the catalogue.

    Raises:
        PackError: when one of them is no folder.
    """
    for folder in map(str, added):
        # A run without folders of its own need not wait for these.
        from hashlib import sha256
        from importlib.machinery import ModuleSpec
        from importlib.util import module_from_spec

        name = f"rules_in_{sha256(folder.encode()).hexdigest()[:16]}"
        if name in _ADDED:
            continue
        if not os.path.isdir(folder):
            raise PackError(f"{folder}: there is no such folder of rules")
        # A package without an __init__.py, so that its modules can import each other as in an installed pack.
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [folder]
        sys.modules[name] = module_from_spec(spec)
        _ADDED[name] = folder
        for known in (catalogue, everything, version, meant):
            known.cache_clear()


def added_folder(package: str) -> str:
    """The folder of a package that `add` made, "" for an installed one."""
    return _ADDED.get(package, "")


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every installed rule in the order of the codes."""
    entries = sorted(entry for package in _packages() for entry in _entries(package))
    if not entries:
        raise PackError("no rules are installed: run `pip install -e .` in a checkout of accumlint")
    for one, other in pairwise(entries):
        if one.code == other.code:
            raise PackError(
                f"{one.module} and {other.module} both claim {one.code}: uninstall the package of one"
            )
    return tuple(entries)


def select(
    wanted: Sequence[str] = (), also: Sequence[str] = (), ignored: Sequence[str] = ()
) -> Selection:
    """The rules of `wanted` (empty: all that are not opt-in) and `also` without `ignored`.

    Selectors are codes, names, the beginning of a code, or ALL; one that names no rule selects none. The longer
    selector wins, and an ignore wins a tie. An opt-in rule is selected by its own code or name only.
    """
    known = catalogue()
    chosen = (*(wanted or ("",)), *also)
    entries = tuple(e for e in known if _strongest(chosen, e) > _strongest(ignored, e))
    named = (e for e in entries if any(_weight(s, e) == _EXACT for s in chosen))
    return Selection(entries, frozenset(named))


def require(selectors: Iterable[str]) -> None:
    """Raises UnknownSelector on the first selector that names no rule."""
    for selector in selectors:
        if not is_selector(selector):
            raise UnknownSelector(selector)


def strongest(selectors: Sequence[str], code: str) -> str | None:
    """The selector that names a rule most closely, the last of equals; None where none does."""
    entry = find(code)
    best = max(reversed(selectors), key=lambda selector: _weight(selector, entry), default="")
    return best if best and _weight(best, entry) else None


def find(selector: str) -> Entry:
    """The rule of this code or name."""
    for entry in catalogue():
        if _weight(selector, entry) == _EXACT:
            return entry
    raise UnknownSelector(selector)


@cache
def everything() -> tuple[Rule, ...]:
    """Every installed rule, imported."""
    return tuple(rule(entry) for entry in catalogue())


def knows(word: str) -> bool:
    """True for the code or name of a rule."""
    return any(_weight(word, entry) == _EXACT for entry in catalogue())


def is_selector(word: str) -> bool:
    """True for what selects rules: a code, a name, the beginning of a code, ALL."""
    return any(_weight(word, entry) for entry in catalogue())


def may_be_ours(word: str) -> bool:
    """True for what looks like a code of an installed pack: its letters, then digits."""
    letters = word.rstrip("0123456789").upper()
    return letters != word.upper() and any(
        entry.code.rstrip("0123456789") == letters for entry in catalogue()
    )


@cache
def url(code: str) -> str:
    """The page of a rule on the site that its package names as its documentation, "" where it names none.

    A pack of somebody else's may lay its site out as it likes: what is given is its first page.
    """
    from importlib.metadata import entry_points

    entry = find(code)
    for point in entry_points(group=GROUP):
        if entry.module.startswith(f"{point.value}.") and point.dist:
            for line in point.dist.metadata.get_all("Project-URL") or ():
                label, _, address = line.partition(",")
                if label.strip().lower() == "documentation":
                    site = address.strip()
                    own = point.value == "accumlint_rules"
                    return f"{site.rstrip('/')}/rules/{code.lower()}.html" if own else site
    return ""


@cache
def version() -> str:
    """A short hash of the installed rules: where it is the same, the same defects are known."""
    from hashlib import sha256

    held = sha256()
    for folder in folders():
        for file in sorted(folder.glob("*.py")):
            held.update(f"{file.stem}\0".encode())
            # Line ends depend on how the package came here.
            held.update(file.read_bytes().replace(b"\r\n", b"\n"))
    return held.hexdigest()[:8]


@cache
def rule(entry: Entry) -> Rule:
    """The rule of an entry, imported."""
    from importlib import import_module

    from accumlint.rule import Rule

    try:
        module = import_module(entry.module)
    except ImportError as problem:
        raise PackError(f"{entry.module} cannot be imported: {problem}") from problem
    # Whatever a pack does when it is imported, it is the pack that has to be mended.
    except (Exception, SystemExit) as problem:
        told = f"{type(problem).__name__}: {problem}"
        raise PackError(f"{entry.module} cannot be imported: {told}") from problem
    held = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == entry.module
    ]
    if len(held) != 1:
        raise PackError(f"{entry.module} holds {len(held)} rules; a rule's module holds one")
    found = held[0]()
    if (found.code, found.name) != (entry.code, entry.name):
        raise PackError(
            f"{entry.module} holds {found.code} {found.name}; its file name says {entry.code} {entry.name}"
        )
    return found


def suggestion(selector: str) -> str:
    """A hint at what may have been meant by an unknown selector."""
    near = meant(selector)
    return f"did you mean {near!r}?" if near else "`accumlint rules` lists them"


@lru_cache(1_000)
def meant(selector: str) -> str:
    """The code or name that was probably meant by an unknown selector, "" where none is near."""
    from difflib import get_close_matches

    known = catalogue()
    words = [word for entry in known for word in (entry.code, entry.name)]
    # Codes look alike, so little may differ.
    close = get_close_matches(selector.upper(), words, 1, 0.7) or get_close_matches(
        selector.lower(), words, 1
    )
    return close[0] if close else ""


def folders() -> list[Path]:
    """The folders of the installed packs of rules."""
    return [folder for package in _packages() for folder in _folders(package)]


def _packages() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({*(point.value for point in entry_points(group=GROUP)), *_ADDED})


def _folders(package: str) -> list[Path]:
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        raise PackError(
            f"the rules of {package!r} are gone: reinstall the package that brought them"
        )
    return [Path(folder) for folder in spec.submodule_search_locations]


def _entries(package: str) -> Iterator[Entry]:
    for folder in _folders(package):
        for file in folder.iterdir():
            if match := _MODULE.fullmatch(file.name):
                code, name = match[1].upper(), match[2].replace("_", "-")
                yield Entry(code, name, f"{package}.{file.stem}")


def _weight(selector: str, entry: Entry) -> int:
    """How closely a selector names a rule: 0 for not at all, more for a longer beginning of the code."""
    if selector.upper() == "ALL" or not selector:
        return 1
    if selector.upper() == entry.code or selector.lower() == entry.name:
        return _EXACT
    return 1 + len(selector) if entry.code.startswith(selector.upper()) else 0


def _strongest(selectors: Sequence[str], entry: Entry) -> int:
    return max((_weight(selector, entry) for selector in selectors), default=0)
