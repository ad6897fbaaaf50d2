"""What the names of a file are, by what is done with them: roles, losses, labels, the accumulation steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TypeVar

from accumlint.common.frozen import frozen
from accumlint.reading import ir as p
from accumlint.reading import names
from accumlint.reading.role_facts import ASKED, Facts
from accumlint.reading.role_notes import Region, UnresolvedCall
from accumlint.reading.role_scopes import LOSS, NO_KEYS, RETURNED, Key, tail

T = TypeVar("T")

# Roles of tensors and numbers, whose names are often used for something else in another function.
_PASSING_ROLES = frozenset({"loss", "labels"})
# Roles beside that of a value which trains.
_SIDE_ROLES = frozenset({"average", "ranks"})
LIKE_A_MODEL = frozenset({"train", "eval", "state_dict", "load_state_dict", "zero_grad"})


@frozen
class Roles:
    """`inferred` are the roles that structure tells, by last name; `windows` the dotted texts of accumulation steps.

    `totals` are the last names of what losses are added to.
    """

    inferred: Mapping[str, str]
    windows: frozenset[str]
    totals: frozenset[str] = frozenset()

    def of(self, name: str) -> str:
        """The role of what goes by a name, "" for none."""
        told = self.inferred.get(name, "")
        if not told or told in _SIDE_ROLES:
            return names.role_of(name)
        return "" if told in _PASSING_ROLES else told

    def is_loss(self, name: str) -> bool:
        """True for what goes backward, or reads like it."""
        told = self.inferred.get(name)
        return told == "loss" if told else "loss" in name.lower()

    def are_labels(self, name: str) -> bool:
        """True for what a loss compares predictions with."""
        return self.inferred.get(name) == "labels"

    def is_steps(self, name: str) -> bool:
        """True for the accumulation steps."""
        return name in self.windows or names.is_steps(name)

    def is_averaging(self, receiver: str, called: str) -> bool:
        """True for the update of a running average of weights; `receiver` is "" for a function."""
        made = self.inferred.get(receiver) == "average" and called in names.AVERAGING_METHODS
        return made or names.is_averaging(receiver, called)

    def is_ranks(self, name: str) -> bool:
        """True for the number of ranks that hold a replica of the model."""
        return self.inferred.get(name) == "ranks" or names.is_ranks(name)

    def shows_loss(self, name: str) -> bool:
        """True for a loss and for a total of losses."""
        return name in self.totals or self.is_loss(name)

    def joined(self, other: Roles) -> Roles:
        """The roles of two parts of the same file."""
        return Roles(
            {**other.inferred, **self.inferred},
            self.windows | other.windows,
            self.totals | other.totals,
        )


NO_ROLES = Roles({}, frozenset())


def infer(
    body: tuple[p.Stmt, ...],
    backward: frozenset[str] = frozenset(),
    step: frozenset[str] = frozenset(),
) -> Roles:
    """What the names of a file are; `backward` and `step` are the imported callees that lead to such a call."""
    noted = Facts()
    noted.declare(body, noted.top, "")
    noted.block(body)
    return _Inference(noted, backward, step).solved()


class _Inference:
    """What follows from the facts about each name."""

    def __init__(self, noted: Facts, backward: frozenset[str], step: frozenset[str]) -> None:
        self.noted = noted
        self.far_backward, self.far_step = backward, step

    def solved(self) -> Roles:
        self.close_regions()
        self.by_methods()
        self.only_steps()
        self.spread()
        self.losses()
        reach = self.reach()
        self.callees(reach)
        self.loaders(reach)
        windows = self.sizes_of_windows()
        lost = {key for key, told in self.noted.facts.items() if told == {"loss"}}
        totals = {
            tail(key[1]) for key in self.noted.totals if self.noted.flows.get(key, NO_KEYS) & lost
        }
        return Roles(self.flat(), windows, frozenset(totals))

    def close_regions(self) -> None:
        """Regions do what the functions do that they call."""
        each = [
            (name, region) for name, regions in self.noted.regions.items() for region in regions
        ]
        callers: dict[str, list[str]] = {}
        for name, region in each:
            for callee in region.callees:
                callers.setdefault(callee, []).append(name)
        backward = closed(callers, (*self.far_backward, *(n for n, r in each if r.backward)))
        step = closed(callers, (*self.far_step, *(n for n, r in each if r.step)))
        for region in self.every_region():
            region.backward = region.backward or bool(region.callees & backward)
            region.step = region.step or bool(region.callees & step)

    def every_region(self) -> Iterator[Region]:
        yield from self.noted.stepped
        for loop in self.noted.loops:
            yield loop.region
            yield from loop.around
        for _, within, beside in self.noted.guards:
            yield within
            yield beside

    def by_methods(self) -> None:
        """The roles that methods tell."""
        called = {call.callee for call in self.noted.unresolved}
        for key, asked in self.noted.does.items():
            for name in asked & ASKED.keys():
                self.noted.tell(key, ASKED[name])
            cleared = bool(asked & {"zero_grad", "param_groups"})
            if key in called and asked >= {"backward(…)", "step"} and "prepare" not in asked:
                self.noted.tell(key, "model")
            elif "backward(…)" in asked and asked & {"prepare", "accumulate"}:
                self.noted.tell(key, "accelerator")
            elif cleared and "step" in asked:
                self.noted.tell(key, "optimizer")
            elif asked >= {"step", "update"} and "scale" in asked:
                self.noted.tell(key, "scaler")
        for scaler, stepped in self.noted.steps_given:
            if "scaler" in self.noted.facts.get(scaler, ()) or self.noted.does.get(
                scaler, set()
            ) & {"scale", "unscale_"}:
                self.noted.tell(scaler, "scaler")
                self.noted.tell(stepped, "optimizer")

    def only_steps(self) -> None:
        """An optimizer of which nothing is seen but that it steps, before its scheduler does."""
        stepping = {"optimizer", "accelerator", "scaler"}
        if any(roles & stepping for roles in self.noted.facts.values()):
            return
        # A model may clear, too: by the name under which something is called.
        driven = {tail(call.callee[1]) for call in self.noted.unresolved}
        cleared = {tail(key[1]) for key, asked in self.noted.does.items() if "zero_grad" in asked}
        if not cleared <= driven:
            return
        for region, keys in self.noted.stepped.items():
            known = [self.noted.facts.get(k) or {names.role_of(tail(k[1]))} - {""} for k in keys]
            if not region.backward or any(roles - {"scheduler"} for roles in known):
                continue
            free = [
                k for k, r in zip(keys, known, strict=True) if not r and k not in self.noted.others
            ]
            for key, role in zip(free, ("optimizer", "scheduler"), strict=False):
                self.noted.tell(key, role)

    def spread(self) -> None:
        """Along assignments and arguments: first from the functions to their callers, then the other way."""
        givers: dict[Key, set[Key]] = {}
        for given, params in self.noted.given.items():
            for param in params:
                givers.setdefault(param, set()).add(given)
        for down in (False, True):
            links = self.noted.given if down else givers
            waiting = [key for key, told in self.noted.facts.items() if told]
            while waiting:
                key = waiting.pop()
                told = self.noted.facts[key]
                if len(told) != 1:
                    continue
                role = next(iter(told))
                for other in (*self.noted.same.get(key, ()), *links.get(key, ())):
                    known = self.noted.facts.get(other, set())
                    if role in known or (role == "engine" and "model" in known):
                        continue
                    # A helper that is given several kinds of values has a role for none of them.
                    several = down and other in links.get(key, ())
                    if several and any(self.noted.facts.get(g) != told for g in givers[other]):
                        continue
                    self.noted.tell(other, role)
                    waiting.append(other)

    def losses(self) -> None:
        """The parts of a loss are losses: what is divided, what is added."""
        waiting = [key for key, told in self.noted.facts.items() if told == {"loss"}]
        while waiting:
            key = waiting.pop()
            for part in (
                *self.noted.aliases.get((key[0], f"{key[1]}/"), ()),
                *self.noted.same.get(key, ()),
            ):
                if not self.noted.facts.get(part):
                    self.noted.facts[part] = {"loss"}
                    waiting.append(part)

    def reach(self) -> frozenset[Key]:
        """Everything that a loss which goes backward is made of."""
        found = {
            key for key, told in self.noted.facts.items() if told == {"loss"}
        } | self.noted.backwarded
        return frozenset(closed(self.noted.flows, found))

    def callees(self, reach: frozenset[Key]) -> None:
        """Models and criteria: what is called on the way to a loss."""
        calls = [c for c in self.noted.unresolved if c.targets & reach or LOSS in c.targets]
        made = [(c.callee, c.targets) for c in calls]
        made += [m for m in self.noted.methods if "model" in self.noted.facts.get(m[0], ())]
        makers: dict[Key, set[Key]] = {}
        for by, targets in made:
            for key in (by, *targets):
                makers.setdefault(key, set()).add(by)
        outer = {c.callee for c in calls if len(c.args) > 1 and _is_predicted(c, makers)}
        inner = {c.callee for c in calls} - outer
        trained = {
            k
            for k in inner
            if self.noted.does.get(k, set()) & LIKE_A_MODEL
            or "model" in self.noted.facts.get(k, ())
        }
        scopes = Counter(scope for scope, _ in inner)
        alone = trained or {key for key in inner if scopes[key[0]] == 1}
        for key in alone:
            if not self.noted.facts.get(key):
                self.noted.tell(key, "model")
        for key in outer:
            if not self.noted.facts.get(key) and not self.noted.does.get(key, set()) & LIKE_A_MODEL:
                self.noted.tell(key, "criterion")
        for labels, by in self.noted.compared:
            known = (
                not by or by & reach or any("criterion" in self.noted.facts.get(k, ()) for k in by)
            )
            if known and not self.noted.facts.get(labels):
                self.noted.tell(labels, "labels")

    def loaders(self, reach: frozenset[Key]) -> None:
        """What is gone through, item by item, on the way to losses."""
        reaching = {loop.region for loop in self.noted.loops if loop.items & reach}
        for loop in self.noted.loops:
            region = loop.region
            if not loop.items & reach or not region.backward or not region.step or region.loops:
                continue
            if any("optimizer" in self.noted.facts.get(item, ()) for item in loop.items):
                # Each optimizer in turn, by its number.
                continue
            if not reaching.isdisjoint(loop.around):
                # Which of two loops brings the micro-batches is not known: names decide.
                continue
            for source in loop.sources:
                known = self.noted.facts.get(source) or source in self.noted.cut
                if not known and source not in self.noted.shown:
                    self.noted.tell(source, "loader")
        for source, items in self.noted.fetched.items():
            if items & reach and not self.noted.facts.get(source):
                self.noted.tell(source, "loader")

    def sizes_of_windows(self) -> frozenset[str]:
        """The accumulation steps, by all that tells them."""
        found = set(self.noted.windows)
        lost = {key for key, told in self.noted.facts.items() if told == {"loss"}} | {LOSS}
        divisors = {
            known
            for key in lost & self.noted.divisors.keys()
            for size in self.noted.divisors[key]
            for known in self.known_as(size)
        }
        found |= divisors & self.noted.modulo
        # The rows of a window by those of a micro-batch.
        found |= {
            key for key, rows, each in self.noted.quotients if (rows, each) in self.noted.rows
        }
        for sizes, within, beside in self.noted.guards:
            apart = not within.backward or (beside.backward and not beside.step)
            if within.step and (apart or self.applies_a_sum(within)):
                # Of several intervals, what the loss is divided by is that of the window.
                found |= sizes & divisors or sizes
        for loop in self.noted.loops:
            if loop.count is None:
                continue
            if loop.region.backward and loop.count in divisors:
                found.add(loop.count)
            elif loop.region.backward or loop.region.fetches:
                around = any(o.step and (o.backward or loop.region.backward) for o in loop.around)
                if around and not loop.region.step:
                    found.add(loop.count)
        for size in found | {full for key in found for full in self.noted.capped.get(key, ())}:
            if size not in self.noted.capped and not self.noted.facts.get(size):
                self.noted.tell(size, "steps")
        self.spread()
        return frozenset(k[1] for k, told in self.noted.facts.items() if told == {"steps"})

    def applies_a_sum(self, guarded: Region) -> bool:
        """True where a loss that goes backward under a guard was added up before it."""
        return any(
            guarded not in stack for key in guarded.lost for stack in self.noted.sums.get(key, ())
        )

    def known_as(self, size: Key) -> set[Key]:
        found, waiting = {size}, [size]
        while waiting:
            size = waiting.pop()
            for other in (*self.noted.aliases.get(size, ()), *self.noted.capped.get(size, ())):
                if other not in found:
                    found.add(other)
                    waiting.append(other)
        return found

    def flat(self) -> dict[str, str]:
        """The roles by last name, where all that goes by it is the same."""
        found: dict[str, set[str]] = {}
        for (scope, name), told in self.noted.facts.items():
            if scope != RETURNED and told:
                found.setdefault(tail(name), set()).update(told)
        roles = {name: told.pop() for name, told in found.items() if len(told) == 1}
        roles = {name: role for name, role in roles.items() if role != "steps"}
        for scope, bound in self.noted.bound.items():
            for name in bound if scope is not None else ():
                if roles.get(name) in _PASSING_ROLES and not self.noted.facts.get((scope, name)):
                    del roles[name]
        return {name: role for name, role in roles.items() if name not in ("self", "cls")}


def closed(further: Mapping[T, Iterable[T]], first: Iterable[T]) -> set[T]:
    """Some functions, with those that call them, and so on; the same of anything that leads to more of its kind."""
    found = set(first)
    waiting = list(found)
    while waiting:
        for other in further.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _is_predicted(call: UnresolvedCall, makers: Mapping[Key, Set[Key]]) -> bool:
    """True for a call whose first argument another callee gave, or is."""
    return any(
        key in others or (others and key not in call.targets)
        for key in call.args[0]
        if (others := makers.get(key, NO_KEYS) - {call.callee})
    )
