"""What the names in a file refer to: scopes, and the keys by which facts about a name are kept."""

from __future__ import annotations

from typing import TypeAlias

from accumlint.reading import frameworks
from accumlint.reading import ir as p

# A name in the function that binds it, or the dotted text of an attribute.
Key: TypeAlias = tuple[object, str]
NO_KEYS: frozenset[Key] = frozenset()
ATTRIBUTE = "."
RETURNED = "()"
# What goes backward where it is worked out, under no name.
LOSS: Key = (RETURNED, "backward")
_WRAPPING = frozenset({*frameworks.WRAPPERS, "compile", "unwrap_model", "deepcopy"})


class Scopes:
    """Which function binds a name, and which functions and classes the file defines."""

    def __init__(self) -> None:
        self.top: set[str] = set()
        self.bound: dict[object, set[str]] = {None: self.top}
        self.scopes: list[object] = [None]
        self.functions: dict[str, list[p.Function]] = {}
        self.defined: set[str] = set()
        self.strides: dict[str, str] = {}

    def declare(self, block: tuple[p.Stmt, ...], bound: set[str], owner: str) -> None:
        """Notes what each function binds, and what is defined at all."""
        for statement in block:
            match statement:
                case p.Assign(targets=targets):
                    for target in targets:
                        bound |= p.target_names(target)
                case p.Augment(target=target, op=op, value=value):
                    bound |= p.target_names(target)
                    if op == "+" and not (isinstance(value, p.Const) and value.value == 1):
                        self.strides[p.dotted(target)] = p.dotted(value)
                case p.For(target=target):
                    bound |= p.target_names(target)
                case p.With(items=items):
                    for _, target in items:
                        bound |= p.target_names(target) if target is not None else set()
                case p.Function():
                    self.defined.add(statement.name)
                    shown = f".{statement.name}" if statement.owner else statement.name
                    self.functions.setdefault(shown, []).append(statement)
                    self.bound[statement] = {q.name for q in statement.params}
                    self.declare(statement.body, self.bound[statement], owner)
                    if statement.name == "__init__" and owner:
                        self.functions.setdefault(owner, []).append(statement)
                case p.Class():
                    self.defined.add(statement.name)
                    self.declare(statement.body, set(), statement.name)
                case p.Import(names=imported):
                    self.defined.update(name for name, _ in imported)
                case _:
                    pass
            for part in p.blocks(statement):
                self.declare(part, bound, owner)

    def key(self, expr: p.Expr | None) -> Key | None:
        """What an expression names, through all that leaves it what it is."""
        match expr:
            case p.Name(id=name):
                for scope in reversed(self.scopes):
                    if name in self.bound[scope]:
                        return scope, name
                return None, name
            case p.Attr(base=base, name=name):
                return self.key(base) if name == "module" else (ATTRIBUTE, p.dotted(expr))
            case p.Item(index=p.Const(value=str())):
                return ATTRIBUTE, p.dotted(expr)
            case p.Call(func=p.Attr(base=base, name=name)) if name in frameworks.PASSING:
                return self.key(base)
            case p.Call(func=func, args=[first, *_]) if last_of(func) in _WRAPPING:
                return self.key(first.value)
            case _:
                return None

    def reads(self, expr: p.Expr) -> frozenset[Key]:
        """Everything that a value is made of."""
        found: set[Key] = set()
        for node in p.walk_expr(expr):
            if isinstance(node, p.Name):
                key = self.key(node)
                if key is not None and node.id != "self":
                    found.add(key)
            elif isinstance(node, p.Attr):
                found.add((ATTRIBUTE, p.dotted(node)))
            elif isinstance(node, p.Call):
                callee = called_as(node.func)
                if callee in self.functions:
                    found.add((RETURNED, callee))
        return frozenset(found)

    def is_open(self, func: p.Expr) -> bool:
        """True for a callee that the file binds, and does not define: an argument, a local value, an attribute."""
        match func:
            case p.Name(id=name):
                # A parameter hides a function of the same name.
                local = any(name in self.bound[scope] for scope in self.scopes[1:])
                return local or (name not in self.defined and name in self.top)
            case p.Attr(base=p.Name(id="self"), name=name):
                return name not in self.defined
            case p.Item(base=base):
                return self.is_open(base)
            case _:
                return False


def last_of(func: p.Expr) -> str:
    return func.name if isinstance(func, p.Attr) else p.dotted(func).rpartition(".")[2]


def called_as(func: p.Expr) -> str:
    return f".{func.name}" if isinstance(func, p.Attr) else p.dotted(func)


def tail(text: str) -> str:
    """The last name of a dotted text."""
    return text.rpartition(".")[2]
