"""What a rule is, and what it says: all that a rule's author imports besides the trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypedDict

from accumlint.common.examples import completed
from accumlint.common.frozen import frozen
from accumlint.common.observed import Observed
from accumlint.common.place import Place
from accumlint.editing import Verb
from accumlint.reading.ir import Node
from accumlint.reading.program import Program
from accumlint.tracing.trace import Event, Trace, Window

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Severity(str, Enum):
    """How bad the defect is: a wrong update, a wrong learning rate or lost data, or only cost and logs."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Confidence(str, Enum):
    """How sure a finding is: seen in the code, under a named assumption, or only worth asking about."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"

    @property
    def rank(self) -> int:
        """2 for certain, 1 for likely, 0 for possible."""
        return {"certain": 2, "likely": 1, "possible": 0}[self.value]

    def lowered(self) -> Confidence:
        return {"certain": Confidence.LIKELY}.get(self.value, Confidence.POSSIBLE)


class Claim(str, Enum):
    """What a measurement must show for a finding to be confirmed."""

    GRADIENT = "gradient"
    RANKS = "ranks"
    COMMUNICATION = "communication"
    MEMORY = "memory"
    SCHEDULE = "schedule"
    LOG = "log"
    EXCEPTION = "exception"


class Applicability(str, Enum):
    """Who may apply a fix: `--fix`, only `--unsafe-fixes` (right, but something must be tuned or checked), nobody."""

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY = "display"


@frozen
class Fix:
    """How a finding can be mended: what to do in one sentence, and in the verbs of `accumlint.editing`.

    A fix is offered only where its verbs can be done with certainty, and where the finding is gone afterwards and no
    other has come but an info or what the rule says that it hides.
    """

    message: str
    verbs: tuple[Verb, ...]
    applicability: Applicability = Applicability.SAFE


def safe(message: str, *verbs: Verb) -> Fix:
    """A fix that turns wrong into right and changes nothing else."""
    return Fix(message, verbs)


def unsafe(message: str, *verbs: Verb) -> Fix:
    """A fix that is right, after which the user must tune or check something."""
    return Fix(message, verbs, Applicability.UNSAFE)


class Symptom(str, Enum):
    """What the run of a loop shows when a finding is right: the question that its claim puts to the measured windows.

    GRADIENT: the applied gradient is not the large batch's. SCALE: it is a multiple of it. WEIGHTS: targets weigh
    differently where their numbers differ. CLIPPED: clipping gives another gradient than clipping the large batch's.
    RAISES: the loop ends with an exception, or applies another gradient. SPREAD: ranks apply different gradients.
    REDUCTIONS: more all-reduces than updates. LEFT: micro-batches are never applied, or in the next epoch.
    PARTIAL: a partial window is divided by the full steps. SIZES: windows of different sizes. STEPS: more updates
    than windows. SCHEDULES: more scheduler steps than updates. ATTACHED: a total keeps a graph that grows.
    GROWING: a total is never set back. STUCK: after one overflow the loop never recovers. SKIPPED: where one
    micro-batch's loss is no number, its window's gradient is not the mean over the others. MISSED: nothing is ever
    applied, or another gradient than that of a large batch of as many micro-batches as were asked for. AVERAGES: the
    weights' running average moves more often than the weights. HELD: graphs of several micro-batches are kept at once.
    """

    GRADIENT = "gradient"
    SCALE = "scale"
    WEIGHTS = "weights"
    CLIPPED = "clipped"
    RAISES = "raises"
    SPREAD = "spread"
    REDUCTIONS = "reductions"
    LEFT = "left"
    PARTIAL = "partial"
    SIZES = "sizes"
    STEPS = "steps"
    SCHEDULES = "schedules"
    ATTACHED = "attached"
    GROWING = "growing"
    STUCK = "stuck"
    SKIPPED = "skipped"
    MISSED = "missed"
    AVERAGES = "averages"
    HELD = "held"


_USUAL = {
    Claim.GRADIENT: Symptom.GRADIENT,
    Claim.RANKS: Symptom.SPREAD,
    Claim.COMMUNICATION: Symptom.REDUCTIONS,
    Claim.MEMORY: Symptom.ATTACHED,
    Claim.SCHEDULE: Symptom.SCHEDULES,
    Claim.LOG: Symptom.GROWING,
    Claim.EXCEPTION: Symptom.RAISES,
}


@frozen
class Related:
    """Another place that helps to understand a finding."""

    node: Node
    message: str


@frozen
class Mention:
    """A rule that an ignore comment or a setting names: `text` as written, the comment's own word where it has no list.

    `known` says whether it names rules at all, `hint` what may have been meant. `silences` counts the findings that the
    comment silences for its sake; None where that is not known. `meant` is the rule that was probably meant, `removal`
    what to take out of a program's text for the mention to be gone (None in settings).
    """

    text: str
    place: Place
    known: bool = True
    hint: str = ""
    silences: int | None = None
    misplaced: bool = False
    meant: str = ""
    removal: Place | None = None


@frozen
class Rewording:
    """How a mention can be mended: `content` in the place of what stands there."""

    applicability: Applicability
    message: str
    place: Place
    content: str


@frozen
class Remark:
    """A fault that a `meta` rule sees in a mention, told in one line."""

    rule: Rule
    mention: Mention
    message: str
    fix: Rewording | None = None


@frozen
class Finding:
    """A defect that a rule saw.

    `message` is one line in the user's identifiers. `window` is the window it was seen in, for the timeline and the
    two lines `applied` and `expected` (what the optimizer applies; what the large batch would apply). `fixes` are ways
    to mend it, the best first. `trace` is a path that it was seen on. `everywhere`: it only holds if it
    holds on all paths through its place. `behind` is the code of a finding that hides it until that is mended.
    """

    rule: Rule
    node: Node
    message: str
    severity: Severity
    confidence: Confidence
    related: tuple[Related, ...] = ()
    window: Window | None = None
    applied: str = ""
    expected: str = ""
    conditions: tuple[tuple[str, str], ...] = ()
    fixes: tuple[Fix, ...] = ()
    trace: Trace | None = None
    everywhere: bool = False
    behind: str = ""


class Details(TypedDict, total=False):
    """What a finding may tell besides its message, as `Finding` holds it."""

    confidence: Confidence
    severity: Severity | None
    window: Window | None
    related: Iterable[Related]
    applied: str
    expected: str
    conditions: tuple[tuple[str, str], ...]
    fixes: Iterable[Fix]
    everywhere: bool


class Rule:
    """One defect. Subclasses set `severity`, write their page as the docstring and one of the checks.

    The code and the name are those of the file, `acc102_loss_not_divided.py`, where a class does not say them.

    `ranks` is the least number of processes in which the defect shows when a loop is run.

    `fix` is the surest fix that the rule may offer, None without any. `hides` are the beginnings of the codes of which
    nothing can be found in the same window while this defect is there: its fix may bring them to light. Where it is
    `misplaced`, the rule points to what clears gradients and belongs behind the step: what it hides is looked for as if
    that stood there. `needs_followed` are roles ("loss", "model" …): the rule is silent, and its page says so, where
    a call that could not be followed received one of them. `unmeasured` says why no run can confirm the rule, "" where
    one can. `observed` is what a script's own run shows of the defect.

    `of_losses` rules judge what goes backward alone: they are asked, too, where a framework's trainer goes backward,
    steps and clears, which it does right. `opt_in` rules run only when selected by name or code. An `exceptional` rule
    is asked about the paths on which a guard on the data fires (a loss that is no number), and about no others. A
    `meta` rule is about how rules are named in ignores and settings, and asked about these mentions alone.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    claim: ClassVar[Claim] = Claim.GRADIENT
    fix: ClassVar[Applicability | None] = None
    hides: ClassVar[tuple[str, ...]] = ()
    misplaced: ClassVar[bool] = False
    needs_followed: ClassVar[tuple[str, ...]] = ()
    unmeasured: ClassVar[str] = ""
    # A fixed text is held to the gradient's direction: its size is another rule's claim.
    of_direction: ClassVar[bool] = False
    symptom: ClassVar[Symptom | None] = None
    observed: ClassVar[Observed | None] = None
    ranks: ClassVar[int] = 1
    of_losses: ClassVar[bool] = False
    opt_in: ClassVar[bool] = False
    exceptional: ClassVar[bool] = False
    meta: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        code, _, name = cls.__module__.rpartition(".")[2].partition("_")
        cls.code = vars(cls).get("code", code.upper())
        cls.name = vars(cls).get("name", name.replace("_", "-"))

    def findings(self, trace: Trace) -> Iterator[Finding]:
        """What the rule finds on one path whose calls are followed as far as it needs."""
        hidden = self.needs_followed and trace.main.hides(*self.needs_followed)
        return iter(()) if hidden else self.check(trace)

    def check(self, trace: Trace) -> Iterator[Finding]:
        """The findings on one path; called for each path of each loop. Repeated findings are merged."""
        yield from ()

    def check_program(self, program: Program) -> Iterator[Finding]:
        """The findings that need no execution; called once per file."""
        yield from ()

    def check_mentions(self, mentions: Iterable[Mention]) -> Iterator[Remark]:
        """What is wrong with how rules are ignored and configured; called once per file that mentions rules."""
        yield from ()

    def at(self, place: Event | Node, message: str, **details: Unpack[Details]) -> Finding:
        """A finding of this rule at an event or a node of the program, certain where the details tell no less."""
        node = place.node if isinstance(place, Event) else place
        return Finding(
            self,
            node,
            message,
            details.get("severity") or self.severity,
            details.get("confidence", Confidence.CERTAIN),
            tuple(details.get("related", ())),
            details.get("window"),
            details.get("applied", ""),
            details.get("expected", ""),
            details.get("conditions", ()),
            fixes=tuple(details.get("fixes", ())),
            everywhere=details.get("everywhere", False),
        )

    @property
    def shows(self) -> Symptom:
        """What a run has to show, the claim's usual symptom where the rule names none."""
        return self.symptom or _USUAL[self.claim]

    @classmethod
    def page(cls) -> str:
        """The rule's page in Markdown, without its title line."""
        page = inspect.cleandoc(cls.__doc__ or "")
        if cls.needs_followed:
            start, silent, rest = page.partition("When it stays silent:")
            reasons, end, rest = rest.partition("\n\n")
            told = " or the ".join(cls.needs_followed)
            reasons += (
                f"\nIt is also silent where a call that could not be followed received the {told}."
            )
            page = start + silent + reasons + end + rest
        return completed(page)
