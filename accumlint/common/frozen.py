"""Makes the classes of plain values: dataclasses whose fields never change, at a fifth of the cost.

`dataclass(frozen=True)` writes and compiles seven methods for every class, which takes most of a millisecond, and the
check of one file needs 170 classes. Here only `__init__` is compiled. The other methods are the same for all classes,
and that fields do not change is what the type checker sees to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[T], T]:
        """Tells type checkers only."""
        return lambda made: made


T = TypeVar("T")
Kind = TypeVar("Kind", bound=type[Any])


@overload
def frozen(kind: Kind, /) -> Kind: ...
@overload
def frozen(*, eq: bool = True, slots: bool = False) -> Callable[[Kind], Kind]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(
    kind: Kind | None = None, /, *, eq: bool = True, slots: bool = False
) -> Kind | Callable[[Kind], Kind]:
    """A class of values with these fields, equal where all fields are; with `eq` False, each equals only itself."""

    def make(kind: Kind) -> Kind:
        made = dataclass(eq=False, repr=False, slots=slots)(kind)
        methods = {"__repr__": _repr, **(_comparison(made) if eq else {})}
        for name, method in methods.items():
            if name not in made.__dict__:
                setattr(made, name, method)
        return made

    return make if kind is None else make(kind)


def _repr(self: Any) -> str:
    told = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"


def _comparison(kind: type[Any]) -> dict[str, Callable[..., object]]:
    """How the values of a class are compared and hashed."""
    names = [f.name for f in fields(kind) if f.compare]
    content: Callable[[Any], object] = attrgetter(*names) if names else lambda _: ()

    def equal(self: Any, other: Any) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return self is other or content(self) == content(other)

    def hashed(self: Any) -> int:
        return hash(content(self))

    return {"__eq__": equal, "__hash__": hashed}
