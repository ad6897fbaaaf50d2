"""An ignore or a setting names a rule that does not exist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accumlint.rule import Applicability, Mention, Remark, Rewording, Rule, Severity


class UnknownRule(Rule):
    """An ignore comment or a setting names a rule that does not exist.

    A misspelt code silences nothing and selects nothing, and nobody notices. An ignore needs the
    whole code or name of a rule; settings also take the beginning of a code, and `ALL`.

    Bad:

    ```python
    import torch.nn.functional as F


    def train(model, loader, optimizer, accumulation_steps):
        batches = iter(loader)
        for _ in range(len(loader) // accumulation_steps):
            optimizer.zero_grad()
            for _ in range(accumulation_steps):
                inputs, targets = next(batches)
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()  # accumlint: ignore[loss-not-divide]  # error: ACC102, ACC902
            optimizer.step()
    ```

    Good:

    ```diff
                 loss = F.cross_entropy(model(inputs), targets)
    -            loss.backward()  # accumlint: ignore[loss-not-divide]
    +            loss.backward()  # accumlint: ignore[loss-not-divided]
             optimizer.step()
    ```

    When it stays silent: on `# noqa:` with codes that cannot be accumlint's. A rule of a package
    that is not installed here is unknown.

    When the fix is not offered: where no rule's code or name is near, and in settings. It is
    unsafe, since the name that was probably meant silences something.
    """

    severity = Severity.WARNING
    fix = Applicability.UNSAFE
    meta = True

    def check_mentions(self, mentions: Iterable[Mention]) -> Iterator[Remark]:
        for mention in mentions:
            if not mention.known:
                message = f"`{mention.text}` names no rule; {mention.hint}"
                yield Remark(self, mention, message, _correction(mention))


def _correction(mention: Mention) -> Rewording | None:
    if mention.removal is None or not mention.meant:
        return None
    message = f"Write `{mention.meant}`"
    return Rewording(Applicability.UNSAFE, message, mention.place, mention.meant)
