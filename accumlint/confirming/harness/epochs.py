"""Measures the epoch length of a script: runs only the statements that build its data, with default settings."""

from __future__ import annotations

import ast
import builtins
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from accumlint.confirming.harness.rewriting.slicing import MUTATING
from accumlint.reading import frameworks, names

_SECONDS = 20
_WRAPPERS = {"enumerate", "tqdm", "trange", "list", "iter"}
_BUILT_IN = frozenset(dir(builtins))
# Trainer options by which a rank or an epoch gets a part of the data.
_PARTS = re.compile(r"\b(limit_train_batches|(devices|gpus|num_nodes)=(?!1\b))")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _OpenError(Exception):
    """The value depends on the caller or the command line of the script."""


def script_epoch(text: str, file: str, line: int, share: int) -> dict[str, Any]:
    """The `length` of the epochs around a step at `line` and the `steps` of its windows, each 0 where undetermined.

    `share` ranks divide the data among them. `unknown` is the error that prevented the evaluation.
    """
    found: dict[str, Any] = {"length": 0, "steps": 0, "unknown": ""}
    before = sys.argv
    sys.argv = [file]
    late = signal.signal(signal.SIGALRM, _stop)
    signal.alarm(_SECONDS)
    source = _Source(ast.parse(text), file)
    try:
        around, loader, row = source.fed(line)
        found["length"] = -(-len(source.value(loader, row)) // share)
        found["steps"] = source.steps(around, line)
    except (_OpenError, OSError, SystemExit) as error:
        # A caller's argument, an absent file or a required setting: the epoch may have any length. A loader that an
        # absent module makes may also be endless.
        if error.__cause__ is not None and not source.loads:
            found["unknown"] = _shown(error.__cause__)
    except BaseException as error:  # noqa: BLE001 (whatever the user's code raises)
        given = isinstance(error, NameError) and error.name in source.parameters(line)
        if not given and "has no len()" not in str(error):
            found["unknown"] = _shown(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, late)
        sys.argv = before
    return found


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


def _stop(*_: object) -> None:
    raise TimeoutError(f"it took more than {_SECONDS} s")


def _uncounted(found: ast.expr) -> ast.expr:
    """The iterable of a loop without wrappers that only count."""
    while (
        isinstance(found, ast.Call)
        and found.args
        and isinstance(found.func, ast.Name | ast.Attribute)
    ):
        if ast.unparse(found.func).rpartition(".")[2] not in _WRAPPERS:
            break
        found = found.args[0]
    return found


class _Source:
    """A source whose expressions are evaluated with only the statements that define their names."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self.tree = tree
        self.file = file
        self.depth = 0
        # Whether a `DataLoader` is made of the values that were asked for.
        self.loads = False

    def fed(self, line: int) -> tuple[ast.stmt, ast.expr, int]:
        """The code that runs for each micro-batch around a line, its iterable, and the line of that.

        It is the innermost loop with a backward, or Lightning's training step.

        Raises:
            _OpenError: where there is none.
        """
        around = [
            n for n in ast.walk(self.tree)
            if isinstance(n, ast.For) and _contains(n, line) and "backward" in "".join(map(ast.unparse, n.body))
        ]  # fmt: skip
        if around:
            loop = max(around, key=lambda loop: loop.lineno)
            return loop, _uncounted(loop.iter), loop.lineno
        step = self._function(line)
        if step is None or step.name != "training_step":
            raise _OpenError
        return step, *self._fitted()

    def _fitted(self) -> tuple[ast.expr, int]:
        """The data of the only `fit` call of Lightning's Trainer, and its line.

        Raises:
            _OpenError: where a module builds the data, or the Trainer uses a part of it.
        """
        calls = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call)]
        fits = [n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "fit"]
        named = {k.arg: k.value for call in fits for k in call.keywords}
        loader = named.get("train_dataloaders") or next(
            (c.args[1] for c in fits if c.args[1:]), None
        )
        if len(fits) != 1 or loader is None or _PARTS.search(ast.unparse(self.tree)):
            raise _OpenError
        return loader, fits[0].lineno

    def steps(self, loop: ast.stmt, line: int) -> int:
        """The number that a guarded step compares micro-batches with; 0 for none or several."""
        divisors: list[ast.expr] = []
        compared: list[ast.expr] = []
        for node in ast.walk(loop):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                divisors.append(node.right)
            elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
                compared.append(node.comparators[0])
        stepping = [n for n in ast.walk(loop) if isinstance(n, ast.If) and _contains(n, line)]
        tests = {inner for n in stepping for inner in ast.walk(n.test)}
        named = (
            e
            for e in (*divisors, *compared)
            if isinstance(e, ast.Name | ast.Attribute | ast.Subscript)
        )
        candidates = [e for e in named if names.is_steps(ast.unparse(e).rpartition(".")[2])]
        candidates = candidates or [e for e in divisors if e in tests]
        # Besides the remainder, guards compare with 0 or the end of an epoch.
        zero = [e for e in compared if isinstance(e, ast.Constant) and e.value == 0]
        candidates = candidates or [e for e in compared if e in tests and e not in zero]
        values = {self.value(one, loop.lineno) for one in candidates}
        found = values.pop() if len(values) == 1 else 0
        return found if type(found) is int and found > 0 else 0

    def value(self, wanted: ast.expr, line: int) -> Any:
        """The value of an expression at a line.

        Raises:
            _OpenError: where it depends on an absent caller.
            BaseException: whatever the user's code raises.
        """
        self.depth += 1
        if self.depth > 20:
            raise _OpenError
        self.loads = self.loads or _makes_loader(wanted)
        inside = self._function(line)
        space = self._space(wanted, inside, line)
        self.depth -= 1
        code = ast.Expression(wanted)
        return eval(compile(ast.fix_missing_locations(code), self.file, "eval"), space)

    def _function(self, line: int) -> _Function | None:
        around = [n for n in ast.walk(self.tree) if isinstance(n, _Function) and _contains(n, line)]
        return max(around, key=lambda function: function.lineno, default=None)

    def parameters(self, line: int) -> set[str]:
        """The names that the callers of the functions around a line give."""
        around = (n for n in ast.walk(self.tree) if isinstance(n, _Function) and _contains(n, line))
        return {
            a.arg for function in around for a in ast.walk(function.args) if isinstance(a, ast.arg)
        }

    def _space(self, wanted: ast.expr, inside: _Function | None, line: int) -> dict[str, Any]:
        """The names that an expression reads, with their values."""
        needed = set(_read(wanted))
        kept: list[ast.stmt] = []
        arguments: dict[str, Any] = {}
        if inside is not None:
            params = {a.arg for a in (*inside.args.args, *inside.args.kwonlyargs)}
            kept = _required(list(_before(inside.body, line)), needed)
            for name in sorted(needed & params):
                arguments[name] = self._argument(inside, name)
            needed -= params
        space: dict[str, Any] = {"__name__": "__main__", "__file__": self.file}
        self._execute(_required(list(_before(self.tree.body, 10**9)), needed), space)
        space.update(arguments)
        self._execute(kept, space)
        return space

    def _execute(self, kept: list[ast.stmt], space: dict[str, Any]) -> None:
        """Runs statements; names of modules that cannot be imported are bound to what has no value.

        Raises:
            _OpenError: where such a module decides about the data.
            Exception: where it is also given the accumulation steps, and may yield whole windows.
        """
        self.loads = self.loads or any(map(_makes_loader, kept))
        for statement in kept:
            self._run(statement, space)

    def _run(self, statement: ast.stmt, space: dict[str, Any]) -> None:
        try:
            exec(compile(ast.Module([statement], []), self.file, "exec"), space)
        except _OpenError as reason:
            if reason.__cause__ is not None and _passes_steps(statement):
                raise reason.__cause__ from None
            raise
        except Exception as error:
            imports = isinstance(statement, ast.Import | ast.ImportFrom | ast.Try)
            if not imports or isinstance(error, TimeoutError):
                raise
            space.update(dict.fromkeys(_written(statement), _Absent(error)))

    def _argument(self, function: _Function, name: str) -> Any:
        """The argument that the only call of a function passes for a parameter, else the default."""
        owner = next(
            (c for c in ast.walk(self.tree) if isinstance(c, ast.ClassDef) and function in c.body),
            None,
        )
        known = owner.name if owner is not None and function.name == "__init__" else function.name
        calls = [
            n for n in ast.walk(self.tree)
            if isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] == known
        ]  # fmt: skip
        places = [a.arg for a in function.args.args]
        if owner is not None and places[:1] == [name]:
            return _Instance(lambda attribute: self._attribute(owner, attribute))
        if len(calls) == 1:
            place = (
                places.index(name) - (owner is not None) if name in places else len(calls[0].args)
            )
            named = {k.arg: k.value for k in calls[0].keywords}
            found = named.get(name) or next(iter(calls[0].args[place : place + 1]), None)
            if found is not None:
                return self.value(found, calls[0].lineno)
        defaults = dict(zip(reversed(places), reversed(function.args.defaults), strict=False))
        if len(calls) > 1 or name not in defaults:
            raise _OpenError
        return self.value(defaults[name], function.lineno)

    def _attribute(self, owner: ast.ClassDef, name: str) -> Any:
        """The value that a class assigns to an attribute of `self`."""
        for node in ast.walk(owner):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                return self.value(node.value, node.lineno)
        raise _OpenError


class _Instance:
    """A stand-in for `self` that evaluates attributes from the constructor."""

    def __init__(self, evaluate: Callable[[str], Any]) -> None:
        self._evaluate = evaluate

    def __getattr__(self, name: str) -> Any:
        return self._evaluate(name)


class _Absent:
    """What a module would define that cannot be imported; it has no value."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self()

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise _OpenError from self._error

    __getitem__ = __iter__ = __len__ = __mro_entries__ = __call__


def _makes_loader(node: ast.AST) -> bool:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(ast.unparse(f).rpartition(".")[2] in frameworks.LOADERS for f in calls)


def _passes_steps(statement: ast.stmt) -> bool:
    """Whether a call in a statement is given accumulation steps."""
    return any(
        names.is_steps(ast.unparse(argument).rpartition(".")[2])
        for call in ast.walk(statement)
        if isinstance(call, ast.Call)
        for argument in (*call.args, *(k.value for k in call.keywords))
    )


def _contains(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _before(body: list[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements before a line: enclosing blocks are opened, enclosing loops reduced to their first iteration."""
    for statement in body:
        inner: list[ast.stmt] = getattr(statement, "body", [])
        is_scope = isinstance(statement, _Function | ast.ClassDef)
        if statement.lineno >= line:
            return
        if not is_scope and (
            _contains(statement, line)
            or (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test))
        ):
            if isinstance(statement, ast.For):
                first = ast.parse(
                    f"{ast.unparse(statement.target)} = next(iter({ast.unparse(statement.iter)}))"
                )
                yield ast.copy_location(first.body[0], statement)
            yield from _before(inner, line)
        elif not _contains(statement, line) or is_scope:
            yield statement


def _required(before: list[ast.stmt], needed: set[str]) -> list[ast.stmt]:
    """The statements that define `needed` names; the set grows by the names that these statements read."""
    kept: set[ast.stmt] = set()
    while True:
        more = [s for s in before if s not in kept and needed & set(_written(s))]
        if not more:
            needed -= {name for s in kept for name in _written(s)} | _BUILT_IN
            return [s for s in before if s in kept]
        kept.update(more)
        needed.update(name for s in more for name in _read(s))


def _read(node: ast.AST) -> Iterator[str]:
    inner = _inner(node)
    for found in ast.walk(node):
        if (
            isinstance(found, ast.Name)
            and isinstance(found.ctx, ast.Load)
            and found.id not in inner
        ):
            yield found.id


def _inner(node: ast.AST) -> set[str]:
    """The names that comprehensions bind."""
    targets = [n.target for n in ast.walk(node) if isinstance(n, ast.comprehension)]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _written(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds or whose objects it mutates."""
    if isinstance(statement, _Function | ast.ClassDef):
        yield statement.name
        return
    inner = _inner(statement)
    for node in ast.walk(statement):
        match node:
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]
            case ast.Name(id=name, ctx=ast.Store()) if name not in inner:
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if (
                attr in MUTATING
            ):
                yield name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
                yield name
            case _:
                pass
