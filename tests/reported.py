"""Made-up results of checks, one for each kind of outcome, and what a format makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from accumlint.common.place import Place
from accumlint.common.problem import Kind, Problem
from accumlint.diagnostics.reporting import reporter
from accumlint.diagnostics.reporting.terminal import Look
from accumlint.diagnostics.results.report import (
    Backward,
    Checked,
    Mark,
    Report,
    Silenced,
)

LOOK = Look(root=Path("/src"))
HERE = Place(3, 5, 4, 9)


def report(
    file: str = "lib/train.py", severity: str = "warning", confidence: str = "certain"
) -> Report:
    return Report(
        shown=f"/src/{file}",
        file=f"/src/{file}",
        code="ACC102",
        name="loss-not-divided",
        message="`losses[i](x)` is summed, 100%0A of it",
        severity=severity,
        confidence=confidence,
        mark=Mark(HERE, "    größe.backward()"),
        related=(Mark(Place(1, 1, 1, 2), "k = 4", "the accumulation steps"),),
        condition="when (i + 1) % k; mode == 'a]b|c'",
        applied="step at line 5 applies g1 + g2",
        expected="the large batch is 1/2 g1 + 1/2 g2",
        timeline=(
            Mark(Place(3, 5, 3, 20), "    größe.backward()", "micro-batch 1: backward adds g1"),
            Mark(Place(5, 5, 5, 21), "    optimizer.step()", "step applies g1"),
        ),
        scope="Trainer.fit",
        statement="größe.backward()",
        fingerprint="f" * 32,
        line_hash="c129715d7a2bc9a3:1",
    )


def checked(*reports: Report) -> Checked:
    return Checked(reports[0].shown, reports)


BROKEN = Checked("/src/b.py", problems=(Problem("/src/b.py", "syntax error: x", line=7),))
SLOW = Checked("/src/c.py", problems=(Problem("/src/c.py", "the time ran out", Kind.WARNING),))
LINE = Mark(Place(4, 1, 4, 16), "loss.backward()")
LOST = Backward("/src/d.py", "/src/d.py", LINE, "partly", ("no optimizer step is reached",))
UNTRACED = Checked("/src/d.py", backwards=(LOST, replace(LOST, state="whole", reasons=())))
HELD = Checked("/src/e.py", silenced=(Silenced(report("e.py"), by_comment=True, reason="by hand"),))
BY_SETTINGS = Checked("/src/f.py", silenced=(Silenced(report("f.py"), by_comment=False),))
KNOWN = Checked("/src/g.py", silenced=(Silenced(report("g.py"), by_comment=False, known=True),))
MANY = (checked(report()), BROKEN, SLOW, UNTRACED, HELD, BY_SETTINGS, Checked("/src/ok.py"))


def told(name: str, *results: Checked, look: Look = LOOK) -> str:
    return "\n".join(reporter(name)(results, look))
