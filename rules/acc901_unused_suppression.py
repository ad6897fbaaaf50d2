"""An ignore silences nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.rule import Applicability, Mention, Remark, Rewording, Rule, Severity


class UnusedSuppression(Rule):
    """An ignore comment silences nothing.

    The defect that it spoke of is gone, or the comment stands where it does not work. It misleads
    whoever reads the loop, and would hide the next defect of its kind at this place.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                loss.backward()  # accumlint: ignore[ACC102]  # error: ACC901
            optimizer.step()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
    -            loss.backward()  # accumlint: ignore[ACC102]
    +            loss.backward()
             optimizer.step()
    ```

    Each rule of a list is looked at by itself, and so is `# noqa:` with codes of accumlint. The
    comment is needed where any rule would speak, whichever are selected.

    When it stays silent: in a file with a loop that could not be followed to the end, since the
    comment may be about that; on `# noqa` without a list, which may be about anything; on ignores
    of this very rule. It is silenced by an ignore that names it, never by one without a list.
    """

    severity = Severity.INFO
    fix = Applicability.SAFE
    meta = True

    def check_mentions(self, mentions: Iterable[Mention]) -> Iterator[Remark]:
        for mention in mentions:
            if mention.misplaced:
                message = f"`{mention.text}` silences nothing: it needs a line of its own"
                yield Remark(self, mention, message, _taken_out(mention))
            elif mention.silences == 0:
                message = f"`{mention.text}` silences nothing here"
                yield Remark(self, mention, message, _taken_out(mention))


def _taken_out(mention: Mention) -> Rewording | None:
    if mention.removal is None:
        return None
    return Rewording(Applicability.SAFE, f"Take `{mention.text}` out", mention.removal, "")
