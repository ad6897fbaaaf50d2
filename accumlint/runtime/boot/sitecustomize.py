"""Installs observers of torch in every Python process of a command, then runs the `sitecustomize` that it shadows."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE = os.path.dirname(os.path.abspath(__file__))


def _observe() -> None:
    """Imports the observers, from this installation if accumlint is absent from the process's Python."""
    package = os.path.dirname(os.path.dirname(_HERE))
    if PathFinder.find_spec("accumlint") is None and "accumlint" not in sys.modules:
        spec = spec_from_file_location(
            "accumlint", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        if spec is None or spec.loader is None:
            return
        module = module_from_spec(spec)
        sys.modules["accumlint"] = module
        spec.loader.exec_module(module)
    from accumlint.runtime.child import importing

    importing.watch()


def _go_on() -> None:
    """Runs the `sitecustomize` module that this one shadows."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("ACCUMLINT_RUN"):
    try:
        _observe()
    except Exception as problem:  # noqa: BLE001 (the user's process starts whatever happens here)
        print(f"accumlint: cannot observe this process: {problem}", file=sys.stderr)
_go_on()
