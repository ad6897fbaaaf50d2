"""Import hooks that replace absent, network-bound or reporting packages by modules of stubs."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import ast
import collections.abc
import importlib.abc
import importlib.machinery
import linecache
import math
import sys
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from accumlint.confirming.harness.binding import Binding
from accumlint.confirming.harness.fakes import framework_contracts, fsdp
from accumlint.confirming.harness.fakes.accelerators import Unbound, unimportable
from accumlint.confirming.harness.fakes.stub import Stub
from accumlint.confirming.harness.source_files import OURS, is_of_project

# Packages that report, download or need a service: always replaced.
ABSENT = {
    "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml", "neptune", "clearml", "swanlab", "aim",
    "datasets", "evaluate", "huggingface_hub", "hydra", "omegaconf", "boto3", "google", "modal", "ray", "gradio",
    "matplotlib", "tqdm", "rich", "torchvision", "torchaudio",
}  # fmt: skip
# The part of torch that only reports.
_TENSORBOARD = "torch.utils.tensorboard"
# Modules that older versions of torch had and much code still imports.
_REMOVED: dict[str, dict[str, Any]] = {
    "torch._six": {
        "inf": math.inf, "nan": math.nan, "string_classes": (str, bytes), "int_classes": int,
        "container_abcs": collections.abc, "PY3": True, "PY37": True,
    },
}  # fmt: skip
# Frameworks that drive a loop: without them there is nothing to measure.
DRIVERS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A meta-path finder that serves stub modules for packages that are absent or must not run."""

    def __init__(self, binding: Binding, sharding: dict[str, Any]) -> None:
        self.binding = binding
        self.sharding = sharding
        self.contracts = binding.contracts = framework_contracts.names(binding)
        self.made: list[str] = []
        # Submodules that the installed version of a package lacks.
        self.partly: set[str] = set()
        self.fallback = _Fallback(self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        top = fullname.split(".")[0]
        absent = top in ABSENT or top in self.binding.config.driven or fullname == _TENSORBOARD
        if absent and fullname not in sys.modules:
            return self.spec(fullname)
        if fullname in fsdp.MODULES and _imported_by_user(self.binding.recorder.settings.file):
            return self.spec(fullname)
        return None

    def spec(self, fullname: str) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        self.made.append(spec.name)
        if spec.name in fsdp.MODULES:
            self.binding.note_fake(spec.name, "FSDP's contract on whole parameters")
            stub = self.binding.stub
            return fsdp.module(spec.name, self.sharding, lambda name: stub(f"{spec.name}.{name}"))
        top = spec.name.split(".")[0]
        module = _StubModule(spec.name, self.binding)
        if spec.name in self.partly:
            self.binding.note_fake(spec.name, "a fake, since this version has none")
            module.__dict__.update(_REMOVED.get(spec.name, {}))
        elif top in framework_contracts.PACKAGES:
            self.binding.note_fake(top, "what it promises about the gradient")
            module.__dict__.update(self.contracts)
        elif _imported_by_user(self.binding.recorder.settings.file):
            self.binding.note_fake(top, "a package made of stubs")
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass

    def remove(self) -> None:
        for finder in (self, self.fallback):
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        for name in self.made:
            sys.modules.pop(name, None)


class _Fallback(importlib.abc.MetaPathFinder):
    """The last finder: serves packages that no other has. A missing submodule of a real package stays missing."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        top = fullname.split(".")[0]
        parent = sys.modules.get(top)
        partly = "." in fullname and not isinstance(parent, _StubModule)
        if partly and _is_expected_to_fail() and fullname not in _REMOVED:
            return None
        if not _imported_by_user(self.finder.binding.recorder.settings.file):
            return None
        if partly and top in DRIVERS:
            # The package is installed; `importing` makes a fake for a name that its version lacks.
            return None
        if partly:
            self.finder.partly.add(fullname)
        if top in DRIVERS and top not in framework_contracts.PACKAGES:
            raise Unbound(unimportable(top, ModuleNotFoundError(name=top)))
        return self.finder.spec(fullname)


def _importer() -> types.FrameType | None:
    """The frame that requests an import: the nearest one that is neither importlib's nor accumlint's."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(("<frozen importlib", OURS)):
        frame = frame.f_back
    return frame


def _is_expected_to_fail() -> bool:
    """True where an import is in a try block, as between versions of a package, or is not the project's."""
    frame = _importer()
    if frame is None or not is_of_project(frame.f_code.co_filename):
        return True
    return any(frame.f_lineno in lines for lines in _tries(frame.f_code.co_filename))


@lru_cache(maxsize=256)
def _tries(file: str) -> tuple[range, ...]:
    """The line ranges of a file whose exceptions a handler catches."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    return tuple(
        range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and node.handlers
    )


def _imported_by_user(file: str) -> bool:
    """True when the import is written in the user's file or in another file of its project."""
    frame = _importer()
    if frame is None:
        return False
    name = frame.f_code.co_filename
    # A framework that is checked out as the project imports its optional dependencies.
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return name == file or (is_of_project(name) and package not in DRIVERS)


class _StubModule(types.ModuleType):
    def __init__(self, name: str, binding: Binding) -> None:
        super().__init__(name)
        self.__path__ = []
        self.__dict__["_binding"] = binding

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        binding: Binding = self.__dict__["_binding"]
        if name in ("tqdm", "trange", "track"):
            return lambda it=None, *_, iterable=None, **__: Progress(
                it if iterable is None else iterable
            )
        text = f"{self.__name__}.{name}"
        provided = next((one for one in (name, text) if one in binding.provided), None)
        return Stub(text, binding.answers) if provided is None else binding.take(provided)


class Progress:
    """A progress bar that only passes its items on."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None
