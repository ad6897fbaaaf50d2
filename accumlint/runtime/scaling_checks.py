"""Checks that gradients are unscaled, clipped and applied in the right order, once per window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accumlint.common.observed import Observed
from accumlint.runtime import vectors
from accumlint.runtime.answers import Answer, number, right
from accumlint.runtime.ledger import Moment
from accumlint.runtime.records import Record, spot
from accumlint.runtime.windows import Windows


def answers(found: Windows) -> Iterator[Answer]:
    """The answers about clipping, unscaling and scaled steps of an optimizer."""
    early = list(_unscales(found))
    yield from early
    mixed = any(answer.wrong for answer in early)
    yield from (a for a in _clips(found) if not (mixed and a.observed is Observed.CLIPPED_SCALED))
    yield from _updates(found)
    yield from _unguarded(found)
    yield from _kept(found)


def unheard(record: Record) -> Iterator[Answer]:
    """Overflows that were cleared before the scaler's step or update."""
    overflown = cleared = None
    for event in record.events:
        kind = event["kind"]
        if kind == "backward":
            if cleared and overflown:
                yield Answer(
                    Observed.OVERFLOW_UNHEARD, True, "", (spot(cleared), spot(overflown)),
                    message="gradients that overflow are cleared, and the scaler does not hear of it: its scale stays",
                    applied=f"clear at line {cleared['line']} with the scale at {number(overflown['scaled'])}",
                    expected="scaler.update() before the next backward, control: the gradients themselves",
                )  # fmt: skip
                return
            if event.get("scaled") and not all(
                vectors.is_finite(g.get("after") or []) for g in event["gradients"].values()
            ):
                overflown = event
        elif kind in ("scaler step", "scaler update"):
            overflown = cleared = None
        elif kind == "clear" and overflown:
            cleared = event


def raised(record: Record) -> Iterator[Answer]:
    """Exceptions that the GradScaler raised."""
    for event in record.events:
        message = event.get("raised", "")
        if not event["kind"].startswith("scaler ") or not message:
            continue
        kind = _of_message(message)
        if kind is not None:
            yield Answer(
                kind, True, "", (spot(event),), message=f"the scaler refuses: {message.partition(': ')[2]}",
                applied=f"{event['kind'].replace('scaler ', 'scaler.')} raised {message.partition(':')[0]}",
                expected="one unscale_ and one step for each update, control: the exception itself",
            )  # fmt: skip


def _of_message(message: str) -> Observed | None:
    if (
        "being called after step" in message
        or "already been called since the last update" in message
    ):
        if "unscale_() has already" in message:
            return Observed.UNSCALED_EARLY
        return Observed.UPDATE_MISSING
    return Observed.UPDATE_MISPLACED if "No inf checks" in message else None


def _more_comes(found: Windows, at: int) -> bool:
    """Whether a backward follows a moment in the same window."""
    for moment in found.history.moments[at + 1 :]:
        if moment.kind == "backward":
            return moment.event["key"] == found.main_key
        if moment.kind in ("step", "skip", "clear", "gone", "scaler step"):
            return False
    return False


def _clips(found: Windows) -> Iterator[Answer]:
    clips = [
        (at, m)
        for at, m in enumerate(found.history.moments)
        if m.kind == "clip" and math.isfinite(m.event["limit"])
    ]
    if not clips:
        return
    acts = sum(m.ratio < 0.9999 for _, m in clips)
    acted = f"it acted {acts} of {len(clips)} times"
    control = "control: `.grad` was measured before and after each call"
    for _, moment in clips:
        event = moment.event
        where = (spot(event), *_window(found, moment))
        if moment.scaled and moment.waiting:
            yield Answer(
                Observed.CLIPPED_SCALED, True, "", where,
                message=f"gradients are clipped while they carry the scale of {number(_scale(found))}",
                applied=f"clip at line {event['line']} multiplies by {moment.ratio:.3g} what is scaled",
                expected=f"clipping after unscale_; {acted}, {control}",
            )  # fmt: skip
            return
    early = [m for at, m in clips if m.waiting and _more_comes(found, at)]
    if early:
        event = early[-1].event
        yield Answer(
            Observed.CLIPPED_EARLY, True, "", (spot(event), *_window(found, early[-1])),
            message=f"gradients are clipped {len(early)} times before their window is complete",
            applied=f"clip at line {event['line']} sees {len(early[-1].waiting)} of {found.usual} micro-batches",
            expected=f"one clip of the whole window; {acted}, {control}",
            confidence="certain" if acts else "likely",
        )  # fmt: skip
        return
    late = [m for _, m in clips if not m.waiting and (m.again or not m.factors[0]) and m.known]
    if 2 * len(late) > len(clips):
        event = late[-1].event
        yield Answer(
            Observed.CLIPPED_LATE, True, "", (spot(event), *_window(found, late[-1])),
            message="gradients are clipped when they have been applied or cleared already",
            applied=f"clip at line {event['line']} sees nothing that a step is still to apply",
            expected=f"clipping between the last backward and the step; {acted}, {control}",
        )  # fmt: skip
        return
    figures = f"{len(clips)} clips, each of the whole unscaled window"
    for observed in (Observed.CLIPPED_SCALED, Observed.CLIPPED_EARLY, Observed.CLIPPED_LATE):
        yield right(observed, figures, *(m.event for _, m in clips[:2]))


def _window(found: Windows, moment: Moment) -> Iterator[tuple[str, int]]:
    return (spot(found.first.backwards[n]) for _, n in moment.waiting or moment.again)


def _scale(found: Windows) -> float:
    return float(next((e["scaled"] for e in found.first.of("backward") if e.get("scaled")), 1.0))


def _unscales(found: Windows) -> Iterator[Answer]:
    unscales = [(at, m) for at, m in enumerate(found.history.moments) if m.kind == "unscale"]
    early = [m for at, m in unscales if _more_comes(found, at)]
    if early:
        event = early[-1].event
        yield Answer(
            Observed.UNSCALED_EARLY, True, "", (spot(event), *_window(found, early[-1])),
            message="gradients are unscaled before the window's last backward, which adds scaled ones",
            applied=f"unscale_ at line {event['line']} sees {len(early[-1].waiting)} of {found.usual} micro-batches",
            expected="one unscale_ after the last backward, control: `.grad` was measured before and after",
        )  # fmt: skip
    elif unscales:
        figures = f"{len(unscales)} times unscaled, each a whole window"
        yield right(Observed.UNSCALED_EARLY, figures, unscales[-1][1].event)


def _updates(found: Windows) -> Iterator[Answer]:
    """Updates of the scale: one after each step, none within a window."""
    stepped, open_ = True, False
    steps = [m for m in found.history.moments if m.kind in ("update", "scaler step")]
    updates = sum(m.kind == "update" for m in steps)
    for moment in steps:
        event = moment.event
        if moment.kind == "scaler step":
            if open_:
                yield Answer(
                    Observed.UPDATE_MISSING, True, "", (spot(event),),
                    message="the scaler steps again, and its scale was not updated in between",
                    expected="one update after each step, control: both calls were seen",
                )  # fmt: skip
                return
            stepped = open_ = True
            continue
        open_ = False
        changed = event.get("then") not in (None, event["scale"])
        waiting = [
            n for _, n in moment.waiting if found.first.backwards[n]["key"] == found.main_key
        ]
        if waiting and (changed or not stepped):
            what = f" from {number(event['scale'])} to {number(event['then'])}" if changed else ""
            yield Answer(
                Observed.UPDATE_MISPLACED, True, "", (spot(event), *_window(found, moment)),
                message=f"the scale is updated{what} while {len(waiting)} micro-batches wait for their step",
                applied=f"update at line {event['line']}",
                expected="one update after each step, control: both were seen",
            )  # fmt: skip
            return
        stepped = False
    if updates > 1:
        for observed in (Observed.UPDATE_MISSING, Observed.UPDATE_MISPLACED):
            yield right(observed, f"{updates} updates, one after each step", steps[-1].event)


def _unguarded(found: Windows) -> Iterator[Answer]:
    scaled = [m for m in found.history.steps if any(_is_scaled(found, n) for _, n in m.waiting)]
    bare = [m for m in scaled if not m.guarded]
    if bare:
        moment = bare[-1]
        still = moment.scaled
        what = (
            f"gradients are applied with the scale of {number(_scale(found))} on them"
            if still
            else "the optimizer steps past the scaler, which cannot leave out a step that overflows"
        )
        yield Answer(
            Observed.STEPPED_SCALED, True, "", (spot(moment.event), *_window(found, moment)),
            message=what, applied=f"step at line {moment.event['line']} is the optimizer's own",
            expected="scaler.step(optimizer), control: the backward of the same window is scaled",
        )  # fmt: skip
    elif scaled:
        figures = f"{len(scaled)} steps, all by the scaler"
        yield right(Observed.STEPPED_SCALED, figures, scaled[-1].event)


def _is_scaled(found: Windows, number_: int) -> bool:
    event = found.first.backwards.get(number_)
    return bool(event and event.get("scaled") and event["scaled"] != 1.0)


def _kept(found: Windows) -> Iterator[Answer]:
    moments: Sequence[Moment] = found.history.moments
    skipped: Moment | None = None
    for moment in moments:
        if moment.kind == "skip":
            skipped = moment
        elif moment.kind in ("clear", "gone"):
            skipped = None
        elif moment.kind == "kept" and skipped is not None:
            yield Answer(
                Observed.KEPT_AFTER_SKIP, True, "", (spot(skipped.event), spot(moment.event)),
                message="after a step that was left out, its gradients stay: every later step is left out, too",
                applied=f"backward at line {moment.event['line']} adds to gradients that are no numbers",
                expected="zero_grad whether the step was made or not, control: the gradients themselves",
            )  # fmt: skip
            return
