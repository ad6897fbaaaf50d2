"""A training loop as a timeline: its micro-batches, what is called in each, and what every step applies.

Plain values. `diagnostics` makes them from a trace and `confirming` from a measured pass; terminal, SVG, HTML and JSON
show them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from accumlint.common.frozen import frozen

# The order of what is done in a window when all is done as it should be.
KINDS = (
    "forward",
    "backward",
    "sync",
    "reduce",
    "rescale",
    "unscale",
    "norm",
    "clip",
    "step",
    "update",
    "clear",
    "schedule",
    "average",
    "skip",
)


@frozen
class Call:
    """One call: what `kind` it is and its `lane` (its kind, with a name where there are several).

    `where` is its line for people, `line` the same in the checked file (0 in others), `description` what it does.
    `pending` is the number of micro-batches in `.grad` after it, `loses` are those whose gradients it throws away
    unapplied. `codes` are the rules that found something here. `off`: it leaves out what it could do (a backward
    without sync).
    """

    kind: str
    lane: str
    microbatch: int
    where: str = ""
    line: int = 0
    description: str = ""
    pending: int = 0
    loses: tuple[int, ...] = ()
    codes: tuple[str, ...] = ()
    wrong: bool = False
    off: bool = False


@frozen
class Group:
    """One micro-batch, or several alike that stand together (`first` to `last`).

    `fate` says what became of its gradient ("" when it has none), `kind` is "applied", "again", "lost" or "open",
    `caption` a word for what is not as it should be. `ends`: an epoch ends after it.
    """

    first: int
    last: int
    fate: str = ""
    kind: str = ""
    caption: str = ""
    ends: bool = False

    @property
    def name(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"  # noqa: RUF001


@frozen
class Bracket:
    """What stands over some micro-batches: an update, or that there is none. `words` begin with the longest."""

    microbatches: tuple[int, ...]
    words: tuple[str, ...]
    wrong: bool = False
    row: int = 0


@frozen
class Share:
    """A micro-batch's part in a step: the factor that is `applied` and the one `expected`, as text and as numbers.

    A number that is not known is None; the text then says what is.
    """

    microbatch: int
    applied: str
    expected: str
    value: float | None = None
    target: float | None = None
    wrong: bool = False


@frozen
class Step:
    """The gradient that one step applies, beside the large batch's; `gradient` and `reference` are sums as text.

    `known`: both could be compared, and nothing else (a clip amid the window, ranks apart) makes them differ.
    """

    number: int
    optimizer: str
    where: str
    shares: tuple[Share, ...]
    gradient: str
    reference: str
    known: bool

    @property
    def wrong(self) -> bool:
        return any(share.wrong for share in self.shares)


@frozen
class Timeline:
    """`size` is the length of a whole window (0 where `.grad` is not followed), `raised` what ended the run early.

    `symbols` tell what the letters in the shares stand for.
    """

    groups: tuple[Group, ...] = ()
    calls: tuple[Call, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    steps: tuple[Step, ...] = ()
    size: int = 0
    raised: str = ""
    symbols: tuple[tuple[str, str], ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes in the order of `KINDS`, those of one kind as they come."""
        kinds = {call.lane: call.kind for call in self.calls}
        order = list(kinds)

        def place(lane: str) -> tuple[int, int]:
            kind = kinds[lane]
            return KINDS.index(kind) if kind in KINDS else len(KINDS), order.index(lane)

        return tuple(sorted(kinds, key=place))

    def of(self, group: Group) -> tuple[Call, ...]:
        """The calls of a group, those of its first micro-batch where it stands for several."""
        return tuple(call for call in self.calls if call.microbatch == group.first)

    def step_rows(self) -> list[list[Step]]:
        """The steps in as few rows as they need: those in one row are of one optimizer and share no micro-batch."""
        rows: list[list[Step]] = []
        for step in self.steps:
            own = {share.microbatch for share in step.shares}
            for row in rows:
                taken = {share.microbatch for other in row for share in other.shares}
                if row[0].optimizer == step.optimizer and not own & taken:
                    row.append(step)
                    break
            else:
                rows.append([step])
        return rows


def folded(timeline: Timeline, most: int) -> Timeline:
    """The timeline with like micro-batches drawn as one where it has more than `most`.

    Of those that stand together the first and the last stay, if that is enough.
    """
    if len(timeline.groups) <= most:
        return timeline
    some = _folded(timeline, edges=True)
    return some if len(some.groups) <= most else _folded(timeline, edges=False)


def _folded(timeline: Timeline, *, edges: bool) -> Timeline:
    kept: list[Group] = []
    for _, alike_groups in groupby(timeline.groups, key=lambda group: _likeness(timeline, group)):
        alike = list(alike_groups)
        inner = alike[1:-1] if edges else alike
        if len(inner) > 1:
            one = replace(inner[0], last=inner[-1].last)
            kept += [alike[0], one, alike[-1]] if edges else [one]
        else:
            kept += alike
    left_out = {n for m in kept for n in range(m.first + 1, m.last + 1)}
    return replace(
        timeline,
        groups=tuple(kept),
        calls=tuple(call for call in timeline.calls if call.microbatch not in left_out),
        steps=tuple(
            replace(step, shares=tuple(s for s in step.shares if s.microbatch not in left_out))
            for step in timeline.steps
        ),
    )


def _likeness(timeline: Timeline, group: Group) -> tuple[object, ...]:
    """What two micro-batches must have in common to be drawn as one."""
    shares = tuple(
        (step.number, step.optimizer, share.applied, share.expected)
        for step in timeline.steps
        for share in step.shares
        if share.microbatch == group.first
    )
    calls = tuple((call.lane, call.where, call.off, call.wrong) for call in timeline.of(group))
    # Where a window begins, another group begins.
    bracket = next(
        (i for i, b in enumerate(timeline.brackets) if group.first in b.microbatches), None
    )
    return (group.kind, group.caption, group.ends, calls, shares, bracket)


def ranges(numbers: Sequence[int]) -> str:
    """Numbers with their runs drawn together: "1-4, 7"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


@frozen
class Found:
    """What a rule says of a loop."""

    code: str
    name: str
    severity: str
    message: str
    where: str
    line: int


@frozen
class Loop:
    """A training loop of a file, as it runs under one condition.

    `name` is the function that holds it ("" for the file itself), `where` its lines for people. `setting` tells what it
    was run with, `condition` which flags it took; it is path number `path` of `paths`. `partly` says why it was read
    only in part, a line for each reason. `rows` are its source lines with their numbers, `leading` those that lead to
    what happens in other files.
    """

    shown: str
    name: str
    where: str
    setting: str
    timeline: Timeline
    condition: str = ""
    path: int = 1
    paths: int = 1
    partly: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    rows: tuple[tuple[int, str], ...] = ()
    leading: frozenset[int] = frozenset()

    @property
    def title(self) -> str:
        return f"{self.name}()" if self.name else "Top level of the file"

    @property
    def lines(self) -> frozenset[int]:
        """The lines on which something happens."""
        return frozenset(call.line for call in self.timeline.calls if call.line)


def story(timeline: Timeline) -> str:
    """What becomes of the micro-batches, and how the steps compare with the large batch, in one sentence."""
    fates: dict[str, list[int]] = {}
    for group in timeline.groups:
        if group.fate:
            fates.setdefault(group.fate, []).extend(range(group.first, group.last + 1))
    told = [
        f"{ranges(numbers)} {'is' if len(numbers) == 1 else 'are'} {_PREDICATES[fate]}"
        for fate, numbers in fates.items()
        if fate in _PREDICATES
    ]
    total = sum(map(len, fates.values()))
    wrong = [step for step in timeline.steps if step.wrong]
    if told:
        return f"Of {total} micro-batches, {'; '.join(told)}."
    if wrong:
        which = ranges([step.number for step in wrong])
        return (
            f"{'Steps' if len(wrong) > 1 else 'Step'} {which} "
            f"{'apply' if len(wrong) > 1 else 'applies'} another gradient than the large batch's."
        )
    if timeline.steps and all(step.known for step in timeline.steps):
        return "Every micro-batch weighs what it does in the large batch."
    if timeline.steps and all(group.fate == "applied" for group in timeline.groups if group.fate):
        return "Every micro-batch is applied once."
    return ""


_PREDICATES = {
    "cleared before any step": "cleared before any step",
    "lost": "cleared before any step",
    "never applied": "never applied",
    "applied again": "applied more than once",
}
