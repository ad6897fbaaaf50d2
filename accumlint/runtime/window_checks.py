"""Checks that each update applies all micro-batches of its window, and each only once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accumlint.common.observed import Observed
from accumlint.runtime.answers import Annotations, Answer, is_near, number, right
from accumlint.runtime.ledger import Moment
from accumlint.runtime.records import spot
from accumlint.runtime.size_checks import control, timeline
from accumlint.runtime.windows import Window, Windows


def lifetimes(found: Windows) -> Iterator[Answer]:
    """The answers about lost and repeated micro-batches of an optimizer."""
    yield from _applied_again(found)
    yield from _lost(found)


def answers(found: Windows) -> Iterator[Answer]:
    """The answers about window sizes, where each micro-batch is applied once."""
    yield from _crossing(found)
    yield from _skipping(found)
    yield from _sizes(found)
    yield from _stepped_each_time(found)
    yield from _never_stepped(found)


def _pending(found: Windows, moment: Moment) -> list[int]:
    """The waiting backwards of a moment that are from this optimizer's main place."""
    return [n for _, n in moment.waiting if found.first.backwards[n]["key"] == found.main_key]


def _applied_again(found: Windows) -> Iterator[Answer]:
    """Micro-batches that more than one step applies."""
    steps = [w for w in found.windows if w.known]
    again = [w for w in steps if w.step.again]
    if not again:
        if len(steps) > 1:
            figures = f"no micro-batch is applied twice in {len(steps)} steps"
            yield right(Observed.NEVER_CLEARED, figures, steps[-1].step.event)
        return
    cleared = [m for m in found.history.of("clear", "gone") if m.factors[0]]
    last = again[-1]
    old, new, all_ = len(last.step.again), len(last.step.waiting), len(last.backwards)
    kind = Observed.STEPPED_EACH_TIME if cleared else Observed.NEVER_CLEARED
    what = (
        "the optimizer steps before the window is complete and does not clear"
        if cleared
        else "gradients are never cleared"
    )
    yield Answer(
        kind, True, "", (spot(last.step.event), *(spot(found.backward(n)) for n in last.backwards)),
        message=f"{what}: the step applies {new} new micro-batches and {old} that earlier steps applied",
        applied=f"step at line {last.step.event['line']} applies {all_} micro-batches, {old} of them again",
        expected=f"the window has {new}; seen in {len(again)} of {len(steps)} steps, {control(found)}",
        window=timeline(found, last),
    )  # fmt: skip


def _lost(found: Windows) -> Iterator[Answer]:
    """Micro-batches that are cleared before any step has applied them."""
    wiped = [
        (at, moment)
        for at, moment in enumerate(found.history.moments)
        if moment.kind in ("clear", "gone") and moment.known and _pending(found, moment)
    ]
    steps = len(found.history.steps)
    if not wiped:
        if steps > 1:
            events = [m.event for m in found.history.of("clear")][:3]
            figures = f"no micro-batch is cleared before a step in {steps} windows"
            places = [found.windows[-1].step.event, *events]
            yield right(Observed.CLEARED_INSIDE, figures, *places)
            yield right(Observed.CLEARED_BEFORE_STEP, figures, *places)
        return
    idle = [m for m in found.history.steps if not m.applied]
    if steps and len(idle) > steps // 2:
        moment = wiped[-1][1]
        yield _loss(
            found, Observed.CLEARED_BEFORE_STEP, moment,
            f"gradients are cleared before the step: {len(idle)} of {steps} steps apply nothing",
        )  # fmt: skip
        return
    at_end = [(at, m) for at, m in wiped if _after_epoch(found.history.moments, at)]
    wiped = [pair for pair in wiped if pair in at_end or not _given_up(found, *pair)]
    inside = [m for at, m in wiped if (at, m) not in at_end]
    if inside and 2 * len(inside) >= steps:
        lost = len(_pending(found, inside[-1]))
        yield _loss(
            found, Observed.CLEARED_INSIDE, inside[-1],
            f"gradients are cleared inside the window: {_count(lost)} lost",
        )  # fmt: skip
    elif wiped:
        moment = at_end[-1][1] if at_end else wiped[-1][1]
        lost = len(_pending(found, moment))
        yield _loss(
            found, Observed.LEFT_OVER, moment,
            f"the last window of an epoch is never applied: {_count(lost)} lost",
            confidence="certain" if at_end else "likely",
        )  # fmt: skip


def _given_up(found: Windows, at: int, clear: Moment) -> bool:
    """Whether a clear is a guard's: it gives up a whole window, or what a window had before it lost a micro-batch."""
    later = next((m for m in found.history.moments[at:] if m.kind == "step"), None)
    whole = bool(found.history.of("epoch")) and len(_pending(found, clear)) == found.usual > 1
    return whole or any(window.step is later for window in skipped(found))


def _count(lost: int) -> str:
    return f"{lost} micro-batch is" if lost == 1 else f"{lost} micro-batches are"


def _after_epoch(moments: Sequence[Moment], at: int) -> bool:
    """Whether an epoch began between the last backward and a moment."""
    for moment in reversed(moments[:at]):
        if moment.kind == "backward":
            return False
        if moment.kind == "epoch":
            return True
    return False


def _loss(
    found: Windows, kind: Observed, moment: Moment, message: str, confidence: str = "certain"
) -> Answer:
    lost = _pending(found, moment)
    events = [found.backward(n) for n in lost]
    window: Annotations = tuple(
        (spot(event), f"micro-batch {at}: backward adds g{at}")
        for at, event in enumerate(events, 1)
    )
    again = [m.event["line"] for m in found.history.steps]
    return Answer(
        kind, True, "", (spot(moment.event), *map(spot, events)), message=message,
        applied=f"{_count(len(lost))} cleared before any of {len(again)} steps applies them",
        expected=f"each micro-batch is applied once, {control(found)}",
        window=(*window, (spot(moment.event), f"clear, losing {len(lost)}")), confidence=confidence,
    )  # fmt: skip


def skipped(found: Windows) -> list[Window]:
    """The windows that lack a micro-batch whose batch was drawn, and are divided as if they had it.

    The last windows of an epoch draw no more than they apply.
    """
    usual = found.usual
    drawn = [w.drawn for w in found.steady]
    if usual < 2 or not is_near(found.total, 1) or 2 * drawn.count(usual) <= len(drawn):
        return []
    return [
        w
        for w in found.windows
        if w.known and w.shares and not w.step.again and not w.crosses
        and w.drawn and w.drawn % usual == 0 and 0 < w.size < w.drawn and w.size != usual
        and is_near(w.total, found.total * w.size / usual)
    ]  # fmt: skip


def _skipping(found: Windows) -> Iterator[Answer]:
    """Windows without a micro-batch that was drawn for them."""
    windows = skipped(found)
    if not windows:
        return
    window = windows[0]
    lost = window.drawn - window.size
    what = "a micro-batch is" if lost == 1 else f"{lost} micro-batches are"
    yield Answer(
        Observed.SKIPPED, True, "",
        (spot(window.step.event), *(spot(found.backward(n)) for n in window.backwards)),
        message=(
            f"{what} left out: the step applies {window.size} of {window.drawn} that were drawn, "
            f"each divided by {found.usual}"
        ),
        applied=f"step at line {window.step.event['line']} applies weights of {number(window.total)} in all",
        expected=(
            f"weights of {number(found.total)}; seen in {len(windows)} of {len(found.windows)} steps, {control(found)}"
        ),
        window=timeline(found, window), confidence="likely",
    )  # fmt: skip


def _crossing(found: Windows) -> Iterator[Answer]:
    """Windows that contain the rest of one epoch and the beginning of the next."""
    epochs = found.history.of("epoch")
    leaks = [w for w in found.windows if w.crosses and w.known and w.size > found.usual]
    if leaks:
        window = leaks[0]
        rest = window.size - found.usual
        yield Answer(
            Observed.LEFT_OVER, True, "",
            (spot(window.step.event), *(spot(found.backward(n)) for n in window.backwards)),
            message=(
                f"the last {rest} micro-batches of an epoch are applied in the next one's first window, "
                f"which has {window.size} instead of {found.usual}"
            ),
            applied=f"step at line {window.step.event['line']} applies {window.size} micro-batches"
            + (f" with weights of {number(window.total)} in all" if window.shares else ""),
            expected=f"a window has {found.usual}, {control(found)}", window=timeline(found, window), severity="error",
        )  # fmt: skip
    elif (
        epochs
        and found.windows
        and not any(w.crosses for w in found.windows)
        and not any(_pending(found, m) for m in epochs)
    ):
        ends = "1 end" if len(epochs) == 1 else f"{len(epochs)} ends"
        figures = f"nothing was left over at {ends} of an epoch"
        yield right(Observed.LEFT_OVER, figures, found.windows[-1].step.event)


def _sizes(found: Windows) -> Iterator[Answer]:
    """First windows of another size; partial windows that are divided as if they were whole."""
    usual = found.usual
    sizes = [w.size for w in found.windows if w.size]
    if usual < 2 or len(sizes) < 3:
        return
    first = found.windows[0]
    others = [w.size for w in found.windows[1:] if not w.crosses and not _is_last(found, w)]
    without = skipped(found)
    odd = first.size in (1, usual - 1, usual + 1) and first.size != usual and first not in without
    if (
        odd
        and others
        and others.count(usual) >= max(2, len(others) - 1)
        and not is_near(first.total, 1)
    ):
        yield Answer(
            Observed.OFF_BY_ONE, True, "",
            (spot(first.step.event), *(spot(found.backward(n)) for n in first.backwards)),
            message=f"the first window has {first.size} micro-batches, the others have {usual}",
            applied=f"step at line {first.step.event['line']} applies {first.size} micro-batches"
            + (f" with weights of {number(first.total)} in all" if first.shares else ""),
            expected=f"windows of {sizes[:8]} micro-batches were seen, {control(found)}",
            window=timeline(found, first),
        )  # fmt: skip
    elif len(set(sizes)) == 1:
        event, figures = first.step.event, f"all {len(sizes)} windows have {usual} micro-batches"
        yield right(Observed.OFF_BY_ONE, figures, event)
        if found.history.of("epoch"):
            yield right(Observed.PARTIAL_DIVIDED, f"no window is partial, of {len(sizes)}", event)
    for window in found.windows:
        if (
            window not in without
            and _is_partial(found, window)
            and is_near(window.total, found.total * window.size / usual)
        ):
            yield Answer(
                Observed.PARTIAL_DIVIDED, True, "",
                (spot(window.step.event), *(spot(found.backward(n)) for n in window.backwards)),
                message=f"the partial window of {window.size} micro-batches is divided by {usual}",
                applied=f"step at line {window.step.event['line']} applies weights of {number(window.total)} in all",
                expected=f"a whole window applies {number(found.total)}, {control(found)}",
                window=timeline(found, window),
            )  # fmt: skip
            return


def _is_last(found: Windows, window: Window) -> bool:
    """Whether an epoch begins between a window's step and the next backward, or the record ends there."""
    moments = found.history.moments
    at = next(i for i, moment in enumerate(moments) if moment is window.step)
    for moment in moments[at + 1 :]:
        if moment.kind == "backward":
            return False
        if moment.kind == "epoch":
            return True
    return found.first.ended == "ended"


def _is_partial(found: Windows, window: Window) -> bool:
    whole = window.known and window.shares and is_near(found.total, 1)
    return bool(whole and 0 < window.size < found.usual and _is_last(found, window))


def _stepped_each_time(found: Windows) -> Iterator[Answer]:
    """Steps after each micro-batch of a loss that is divided for a window."""
    weighed = found.weighed
    if found.usual != 1 or not weighed or len(weighed) < 2:
        return
    window = weighed[-1]
    event = found.backward(window.backwards[-1])
    known = int(event.get("accelerate", 0))
    if known > 1 and is_near(found.total, 1 / known):
        through = "accelerate" in window.step.event["through"]
        kind = Observed.ACCUMULATE_UNUSED if through else Observed.UNPREPARED
        what = "accumulate() is never entered" if through else "the optimizer was never prepared"
        message = f"the optimizer steps on every micro-batch of a window of {known}: {what}"
    else:
        divisors = {
            int(value)
            for share in window.main
            for op, value in share.loss.get("factors", ())
            if op == "/" and value is not None and value == int(value) and 1 < value < 64
        }
        single = all(len(found.backward(n)["losses"]) == 1 for w in weighed for n in w.backwards)
        divisor = next((d for d in divisors if is_near(found.total, 1 / d)), 0)
        if not divisor or not single or known > 1:
            return
        kind = Observed.STEPPED_EACH_TIME
        message = f"the optimizer steps on every micro-batch of a loss that is divided by {divisor}"
    yield Answer(
        kind, True, "", (spot(window.step.event), spot(event)), message=message,
        applied=f"step at line {window.step.event['line']} applies {number(found.total)} g1",
        expected=f"a window of 1 applies g1; seen in {len(weighed)} steps, {control(found)}",
        window=timeline(found, window), confidence="certain" if known > 1 else "likely",
    )  # fmt: skip


def _never_stepped(found: Windows) -> Iterator[Answer]:
    """Gradients that no step applies."""
    backwards = found.history.of("backward")
    # A network whose gradients are by-products has no optimizer.
    if found.history.steps or len(backwards) < 4 or found.first.ended != "ended":
        return
    event = backwards[-1].event
    yield Answer(
        Observed.NEVER_STEPPED, True, "", (spot(event),),
        message=f"gradients of {len(backwards)} micro-batches are accumulated and never applied",
        applied="no step was seen", expected=control(found),
    )  # fmt: skip
