"""SVG charts of the updates of a pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from accumlint.confirming.finding_verdicts import ERROR_THRESHOLD
from accumlint.confirming.reports.text_columns import factor, figure
from accumlint.confirming.result import Pass, Update
from accumlint.diagnostics.drawing.markup import Markup, element, picture

_HEIGHT, _TOP, _BASE, _STRIDE, _MARGIN = 168, 26, 132, 46, 8
_WIDE = 260
# Further updates are only in the table.
MOST = 12


def norms(done: Pass, most: float, name: str) -> Markup:
    """The gradient norm of each update as a bar within the outline of its reference; `most` is the top."""

    def bars(update: Update, x: float) -> Iterator[Markup]:
        tone = _tone(update.error)
        yield _bar("reference", x, 30, update.reference, most)
        yield _bar(f"bar {tone}", x, 16, update.applied, most)
        if words := factor(update):
            top = _y(max(update.applied, update.reference), most)
            yield _text(f"\N{MULTIPLICATION SIGN} {words}", tone, x, top - 5)

    description = "; ".join(
        f"update {u.number} applies {figure(u.applied)}, the large batch {figure(u.reference)}"
        for u in done.updates[:MOST]
    )
    return _chart(done.updates, bars, name, "Gradient norm of each update", description)


def spreads(done: Pass, most: float, name: str) -> Markup:
    """The difference between ranks at each update."""

    def bars(update: Update, x: float) -> Iterator[Markup]:
        tone = _tone(update.spread)
        yield _bar(f"bar {tone}", x, 16, update.spread, most)
        yield _text(figure(update.spread), tone, x, _y(update.spread, most) - 5)

    description = "; ".join(f"update {u.number}: {figure(u.spread)}" for u in done.updates[:MOST])
    return _chart(done.updates, bars, name, "Largest difference between ranks", description)


def weights(update: Update, most: float, name: str) -> Markup:
    """The weight of a target in each micro-batch: bars as high as the weight and as wide as the number of targets."""
    whole = sum(update.targets) or 1
    room = max(_WIDE, 24 * len(update.microbatches))
    x = float(_MARGIN)
    bars: list[Markup] = []
    labels: list[Markup] = []
    titles: list[str] = []
    for number, targets, weight in zip(
        update.microbatches, update.targets, update.weights, strict=False
    ):
        width = targets / whole * room
        tone = _tone(weight - 1)
        middle = x + width / 2
        title = f"micro-batch {number}: {targets} targets, weight {figure(weight)}"
        titles.append(title)
        bar = _bar(f"bar {tone}", middle, max(width - 3, 1), weight, most)
        bars.append(element("g", element("title", title), bar))
        labels.append(_text(str(number), "", middle, _BASE + 15))
        if width > 26:
            labels.append(_text(figure(weight), tone, middle, _y(weight, most) - 5))
            labels.append(_text(str(targets), "quiet", middle, _BASE + 30))
        x += width
    one = element("path", class_="one", d=f"M{_MARGIN} {_y(1, most):g}H{x:g}")
    title = f"Weight of a target in each micro-batch of update {update.number}"
    parts = [*bars, _baseline(x), one, *labels]
    return picture(parts, x + _MARGIN, _HEIGHT, name, title, "; ".join(titles))


def arrows(update: Update, name: str) -> Markup | None:
    """The applied gradient beside the large batch's, with true length and angle; None for unknown ones."""
    ratio = update.applied / update.reference if update.reference else math.nan
    if not (math.isfinite(ratio) and math.isfinite(update.cosine)):
        return None
    cosine = min(max(update.cosine, -1), 1)
    across, up = ratio * cosine, ratio * math.sqrt(1 - cosine * cosine)
    left, right = min(0, across), max(1, across)
    unit = min((_WIDE - 40) / (right - left), (_BASE - _TOP) / up if up else math.inf)
    x, y = _MARGIN + 12 - left * unit, _TOP + up * unit
    tone = _tone(update.error)
    end, tip = x + unit, (x + across * unit, y - up * unit)
    parts = [
        element("path", class_="whole", d=f"M{x:g} {y:g}H{end:g}"),
        element("circle", class_="whole-tip", cx=end, cy=y, r=5),
        element("path", class_=f"gap {tone}", d=f"M{end:g} {y:g}L{tip[0]:g} {tip[1]:g}"),
        element("path", class_=f"arrow {tone}", d=f"M{x:g} {y:g}L{tip[0]:g} {tip[1]:g}"),
        element("circle", class_=f"tip {tone}", cx=tip[0], cy=tip[1], r=4),
        element("circle", class_="origin", cx=x, cy=y, r=2.5),
        _label("applied", tone, tip[0], tip[1] - 10),
        _label("large batch", "quiet", end, y + 20),
    ]
    description = (
        f"The applied gradient is {figure(ratio)} times as long as the large batch's and "
        f"{figure(math.degrees(math.acos(cosine)))} degrees away from it; the gap between their tips "
        f"is {figure(update.error)}."
    )
    title = f"Applied gradient of update {update.number} against the large batch's"
    return picture(parts, _WIDE + 2 * _MARGIN, y + 30, name, title, description)


def _label(text: str, tone: str, x: float, y: float) -> Markup:
    """A label at an arrow's tip, within the picture."""
    half = len(text) * 3.1
    inside = min(max(x, half), _WIDE + 2 * _MARGIN - half)
    return _text(text, tone, inside, y)


def _chart(
    updates: Sequence[Update],
    bars: Callable[[Update, float], Iterator[Markup]],
    name: str,
    title: str,
    description: str,
) -> Markup:
    """Bars by update number."""
    parts: list[Markup] = []
    x = float(_MARGIN)
    for update in updates[:MOST]:
        middle = x + _STRIDE / 2
        parts += bars(update, middle)
        parts.append(_text(str(update.number), "", middle, _BASE + 15))
        x += _STRIDE
    parts.append(_baseline(x))
    return picture(parts, max(x, 120) + _MARGIN, _HEIGHT, name, title, description)


def _text(words: str, tone: str, middle: float, y: float) -> Markup:
    return element("text", words, class_=f"small middle {tone}".strip(), x=middle, y=y)


def _baseline(right: float) -> Markup:
    return element("path", class_="base", d=f"M{_MARGIN} {_BASE}H{right:g}")


def _bar(kind: str, middle: float, width: float, value: float, most: float) -> Markup:
    top = _y(value, most)
    return element(
        "rect", class_=kind, x=middle - width / 2, y=top, width=width, height=max(_BASE - top, 0.5)
    )


def _y(value: float, most: float) -> float:
    if not math.isfinite(value) or not most:
        return _BASE
    return _BASE - min(max(value / most, 0), 1) * (_BASE - _TOP)


def _tone(error: float) -> str:
    return "good" if abs(error) <= ERROR_THRESHOLD else "bad"
