"""Checks that an update has the size of the mean over its targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from accumlint.common.observed import Observed
from accumlint.runtime.answers import Answer, is_near, number, right, times
from accumlint.runtime.records import Event, Spot, spot
from accumlint.runtime.windows import Share, Window, Windows

_FACTORS = (
    Observed.UNDIVIDED, Observed.DIVIDED_TWICE, Observed.OTHER_DIVISOR, Observed.WORLD_FACTOR, Observed.SUMMED,
    Observed.TRAINER_UNDIVIDED, Observed.PAST_ACCELERATE, Observed.LIGHTNING_DIVIDED, Observed.PADDING_COUNTED,
    Observed.GRADIENT_SUMMED, Observed.LOSS_REDUCED,
)  # fmt: skip
# Larger constants are a GradScaler's scale, not a weight.
_LARGE = 64.0


def answers(found: Windows) -> Iterator[Answer]:
    """The answers about the total weight of all targets, in the windows of the usual size."""
    if not found.weighed or found.usual == 0:
        return
    total = found.total
    if is_near(total, 1) or is_near(found.total_of_all, 1):
        window = found.weighed[-1]
        figures = (
            f"the weights of all targets add up to {total:.4g} in {len(found.weighed)} windows"
        )
        if found.usual > 1 or found.world > 1:
            places = [found.backward(n) for n in window.backwards] + [window.step.event]
            yield from (right(observed, figures, *places) for observed in _FACTORS)
        return
    main = found.weighed[-1].main
    if total > 1 and any(s.loss["loss"] == "sum" and not is_near(s.mass, 1) for s in main):
        # The number of targets among the elements of a user's own loss is unknown.
        return
    if _runs_on(found):
        what = "the number that the loss is divided by is never set back"
        yield _answer(found, Observed.COUNT_RUNS_ON, what, found.weighed[-1].total)
        return
    observed, what, factor = _named(found)
    if observed is not None:
        yield _answer(found, observed, what, factor)


def _runs_on(found: Windows) -> bool:
    """Whether each window is divided by the targets of all windows so far."""
    weighed = [w for w in found.windows if w.known and w.shares]
    if len(weighed) < 3 or weighed[0].step.again:
        return False
    counts = [sum(share.targets for share in w.main) for w in weighed[:4]]
    parts = [counts[at] / sum(counts[: at + 1]) for at in range(len(counts))]
    return all(is_near(w.total, part) for w, part in zip(weighed, parts, strict=False))


def _named(found: Windows) -> tuple[Observed | None, str, float]:
    """The defect that explains a total weight other than 1."""
    for total in (found.total, found.total_of_all, found.total / constant_weight(found)):
        observed, what = _of_total(found, total)
        if observed is not None:
            return observed, what, total
    return None, "", 0.0


def _of_total(found: Windows, total: float) -> tuple[Observed | None, str]:
    size, world = found.usual, found.world
    window = found.weighed[-1]
    event = found.backward(window.backwards[0])
    if total > 0 and all(share.is_sum for share in window.main):
        targets = sum(share.targets for share in window.main) / world
        if targets > 1:
            for wanted in (targets, targets / size, targets * world, targets * world / size):
                if is_near(total, wanted) and wanted > 1.5:
                    message = "loss is summed over targets and not divided by their number"
                    return Observed.SUMMED, message
    if size > 1:
        for factor in {1, world}:
            if is_near(total, size * factor):
                extra = f" and the {world} ranks" if factor > 1 else ""
                message = f"loss is never divided by the {size} micro-batches{extra}"
                return _undivided(event), message
    if world > 1:
        for factor in (world, 1 / world):
            if is_near(total, factor):
                return _of_world(found, factor)
    if size > 1:
        for wanted in (1 / size, 1 / size / world):
            if is_near(total, wanted) and _divides_twice(found, event):
                message = f"loss is divided by the {size} micro-batches twice"
                is_lightning = _is_lightning(event)
                return (
                    Observed.LIGHTNING_DIVIDED if is_lightning else Observed.DIVIDED_TWICE,
                    message,
                )
        for share in window.main:
            for divisor in _divisors(share):
                if "deepspeed" in event["through"] and size == divisor * divisor:
                    message = f"engine.step() is called once in {divisor} micro-batches and counts as many calls"
                    return Observed.ENGINE_BOUNDARY, f"{message}: a window has {size}"
                if divisor != size and is_near(total, size / divisor):
                    message = f"loss is divided by {divisor} in windows of {size} micro-batches"
                    return Observed.OTHER_DIVISOR, message
    if all(_counts_padding(w) for w in found.weighed):
        return (
            Observed.PADDING_COUNTED,
            "loss is divided by a number that counts ignored targets, too",
        )
    return None, ""


def _undivided(event: Event) -> Observed:
    """The missing division where the update is as many times too large as there are micro-batches."""
    if "transformers" in event["through"]:
        return Observed.TRAINER_UNDIVIDED
    if event.get("accelerate", 0) > 1 and "accelerate.backward" not in event["calls"]:
        return Observed.PAST_ACCELERATE
    return Observed.LIGHTNING_DIVIDED if _is_lightning(event) else Observed.UNDIVIDED


def _is_lightning(event: Event) -> bool:
    return bool({"lightning", "pytorch_lightning"} & set(event["through"]))


def _of_world(found: Windows, factor: float) -> tuple[Observed, str]:
    world = found.world
    reductions = list(found.first.of("reduce"))
    if factor < 1 and any(e["what"] == "loss" for e in reductions):
        what = f"the loss that goes backward was reduced over {world} ranks and divided"
        return Observed.LOSS_REDUCED, what
    if factor > 1 and any(e["what"] == "loss" for e in reductions):
        return Observed.LOSS_REDUCED, f"the loss that goes backward was summed over {world} ranks"
    if factor > 1 and any(e["what"] == "gradient" for e in reductions):
        return Observed.GRADIENT_SUMMED, f"gradients are summed over {world} ranks and not divided"
    word = "multiplied" if factor > 1 else "divided"
    return Observed.WORLD_FACTOR, f"loss is {word} by the {world} ranks on top of their mean"


def _factors(share: Share) -> list[tuple[str, float]]:
    """The constant factors of a loss."""
    return [(op, float(value)) for op, value in share.loss.get("factors", ()) if value is not None]


def _divisors(share: Share) -> Iterator[int]:
    """The integer divisors of a loss, one by one and as a product."""
    product = 1.0
    for op, value in _factors(share):
        if op == "/" and value == int(value) and 1 < value < _LARGE:
            product *= value
            yield int(value)
    if product > 1:
        yield int(product)


def _divides_twice(found: Windows, event: Event) -> bool:
    """Whether the graph contains the division by the window's size twice."""
    size = found.usual
    share = found.weighed[-1].main[0]
    parts = [value if op == "/" else 1 / value for op, value in _factors(share) if value]
    by_size = sum(is_near(part, size) for part in parts)
    # Frameworks may divide outside of the graph, such as an engine's gradients.
    return by_size > 1 or any(is_near(p, size * size) for p in parts) or bool(event["through"])


def constant_weight(found: Windows) -> float:
    """The constant weight of a loss: neither a scale nor related to the window's size."""
    share = found.weighed[-1].main[0]
    size, world = found.usual, found.world
    structural = {size, 1 / size, world, 1 / world, size * world, 1 / size / world}
    product = 1.0
    for op, value in _factors(share):
        is_structural = any(is_near(value, known) for known in structural)
        if op == "*" and 1 / _LARGE < abs(value) < _LARGE and not is_structural:
            product *= value
    return product or 1.0


def _counts_padding(window: Window) -> bool:
    """Whether the total weight is the share of targets that are not ignored."""
    valid = sum(share.targets for share in window.main)
    every = sum(float(share.loss["total"]) for share in window.main)
    return valid < every * 0.98 and is_near(window.total, valid / every)


def _answer(found: Windows, observed: Observed, what: str, factor: float) -> Answer:
    window = found.weighed[-1]
    place = cause(found, window)
    applied, expected = gradients(found, window)
    # An undivided sum, or a part of a loss that is one, may be intended.
    meant = observed is Observed.SUMMED and (
        is_near(factor, sum(share.targets for share in window.main)) or len(window.shares) > 1
    )
    steps = len(found.weighed)
    figures = f"the weights of all targets add up to {number(factor)} in {steps} windows"
    if observed is Observed.ENGINE_BOUNDARY:
        place = spot(window.step.event)
    return Answer(
        observed, True, figures, (place, *(spot(found.backward(n)) for n in window.backwards), spot(window.step.event)),
        message=f"{what}: the gradient is {times(factor)}", applied=applied,
        expected=f"{expected}; {figures}, {control(found)}",
        window=timeline(found, window), factor=factor, confidence="possible" if meant else "certain",
    )  # fmt: skip


def control(found: Windows) -> str:
    """The evidence that the measurement works."""
    return f"control: the recorded contributions explain `.grad` to {found.history.error:.0e}"


def cause(found: Windows, window: Window) -> Spot:
    """The line of the defect: the backward, or the loss where a framework calls the backward."""
    event = found.backward(window.backwards[-1])
    framework = {"transformers", "lightning", "pytorch_lightning"} & set(event["through"])
    if any(call.endswith(".manual_backward") for call in event["calls"]):
        return spot(event)
    if framework and event["losses"] and "site-packages" not in event["losses"][0]["file"]:
        return spot(event["losses"][0])
    return spot(event)


def gradients(found: Windows, window: Window) -> tuple[str, str]:
    """The applied gradient as a combination of the micro-batches' mean gradients, and the large batch's."""
    numbers = {n: at + 1 for at, n in enumerate(window.backwards)}
    first = found.first.rank
    parts = {
        numbers[s.microbatch[1]]: s
        for s in window.main
        if s.microbatch[0] == first and s.microbatch[1] in numbers
    }
    world = found.world if len({s.microbatch[0] for s in window.main}) > 1 else 1
    targets = sum(share.targets for share in window.main)
    line = window.step.event["line"]
    applied = [f"{number(parts[at].mass * world)} g{at}" for at in sorted(parts)]
    wanted = [f"{number(parts[at].targets * world / targets)} g{at}" for at in sorted(parts)]
    ranks = f" on each of {world} ranks" if world > 1 else ""
    return (
        f"step at line {line} applies {_joined(applied)}{ranks}",
        f"the large batch is {_joined(wanted)}",
    )


def _joined(parts: list[str]) -> str:
    return (
        " + ".join([*parts[:4], "…", *parts[-1:]] if len(parts) > 6 else parts) or "nothing known"
    )


def timeline(found: Windows, window: Window) -> tuple[tuple[Spot, str], ...]:
    """The backwards and the step of a window, each with its contribution."""
    first = found.first.rank
    marks: list[tuple[Spot, str]] = []
    for at, n in enumerate(window.backwards, 1):
        shares = [s for s in window.main if s.microbatch == (first, n)]
        what = ", ".join(f"{number(s.mass)} g{at} of {s.targets:g} targets" for s in shares)
        marks.append(
            (spot(found.backward(n)), f"micro-batch {at}: backward adds {what or f'g{at}'}")
        )
    return (*marks, (spot(window.step.event), "step applies what lies there"))


def weights(found: Windows) -> Iterator[Answer]:
    """Checks that each target of an update has the same weight, independent of micro-batch and rank."""
    weighed = [w for w in found.weighed if len(w.main) > 1 and not w.is_mixed]
    if not weighed:
        return
    worst = max(weighed, key=_unevenness)
    uneven = _unevenness(worst)
    events = [found.backward(n) for n in worst.backwards]
    if uneven < 1.02:
        counts = {share.targets for w in weighed for share in w.main}
        figures = f"each target weighs the same in {len(weighed)} windows"
        if len(counts) == 1:
            figures += ", and all micro-batches have as many"
        yield right(Observed.WEIGHTS, figures, *events, worst.step.event)
        yield right(Observed.COUNT_NOT_GLOBAL, figures, *events, worst.step.event)
        return
    observed, what, confidence = _uneven(found, worst)
    applied, expected = gradients(found, worst)
    lightest = min(worst.main, key=lambda s: abs(s.least))
    heaviest = max(worst.main, key=lambda s: abs(s.most))
    figures = f"a target weighs up to {number(uneven)} times as much as another of the same update"
    yield Answer(
        observed, True, figures, (cause(found, worst), *map(spot, events), spot(worst.step.event)),
        message=f"{what}: {figures}", applied=applied,
        expected=(
            f"{expected}; a target weighs {abs(heaviest.most):.3g} in a micro-batch of {heaviest.targets:g} and "
            f"{abs(lightest.least):.3g} in one of {lightest.targets:g}, "
            f"{control(found)}"
        ),
        window=timeline(found, worst), confidence=confidence, factor=uneven,
    )  # fmt: skip


def _unevenness(window: Window) -> float:
    least = min(abs(share.least) for share in window.main)
    most = max(abs(share.most) for share in window.main)
    return most / least if least else 1.0


def _uneven(found: Windows, window: Window) -> tuple[Observed, str, str]:
    """Why target weights differ, and the confidence that they should not."""
    if any(abs(share.most - share.least) > 0.02 * abs(share.most) for share in window.main):
        # Intended weights, such as a diffusion model's weights by timestep.
        what = "the targets of a micro-batch have weights of their own"
        return Observed.WEIGHTS, what, "possible"
    by_rank: dict[int, list[Share]] = {}
    for share in window.main:
        by_rank.setdefault(share.microbatch[0], []).append(share)
    masses = [abs(share.mass) for share in window.main]
    if max(masses) < 1.02 * min(masses):
        what = (
            "a mean over each micro-batch's own targets is divided by the number of micro-batches"
        )
        return Observed.WEIGHTS, what, _sure(found, window)
    if len(by_rank) > 1:
        within = max(
            _unevenness(replace(window, shares={"": tuple(shares)})) for shares in by_rank.values()
        )
        where = "per rank" if within < 1.02 else "per micro-batch"
        what = f"targets are counted {where}, not over the update"
        return Observed.COUNT_NOT_GLOBAL, what, "certain"
    return Observed.WEIGHTS, "the losses of an update are divided by different numbers", "likely"


def _sure(found: Windows, window: Window) -> str:
    """Certain where targets are ignored or sequences differ; possible where only the last rows of an epoch are few."""
    if any(share.targets < float(share.loss["total"]) for share in window.main):
        return "certain"
    counts = [share.targets for w in found.weighed for share in w.main]
    usual = max(set(counts), key=counts.count)
    short = [count for count in counts if count != usual]
    return "possible" if len(short) <= max(1, len(counts) // 8) else "certain"
