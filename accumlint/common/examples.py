"""What examples of defects say about themselves: the lines that they mark, and the blocks of a rule's page."""

from __future__ import annotations

import re

# The paragraphs of a rule's page.
ORDER = ("Bad:", "Good:", "When the fix is not offered:", "Measured", "See:")

_MARKER = re.compile(r"# error: ([A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*)\s*$")
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_DIFF = re.compile(r"```diff\n(.*?)```", re.DOTALL)

# What pages of several rules point to, by the label of the link.
_REFERENCES = {
    "accelerate": "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation",
    "amp": "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
    "clip": "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html",
    "ddp": "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    "faq": "https://docs.pytorch.org/docs/stable/notes/faq.html",
    "loss": "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",
    "optim": "https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
    "reduce": "https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce",
    "step": "https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.step",
    "zero": "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html",
}


def markers(source: str) -> set[tuple[int, str]]:
    """Line and code of each finding that the source says is to be expected: `# error: ACC101` at a line's end."""
    return {
        (number, code.strip())
        for number, line in enumerate(source.splitlines(), 1)
        if (match := _MARKER.search(line))
        for code in match[1].split(",")
    }


def completed(page: str) -> str:
    """The page with its Good block written out, where that is given as a `diff` of the Bad one, and with all links."""
    page = _DIFF.sub(
        lambda diff: f"```python\n{_patched(blocks(page, 'Bad:')[0], diff[1])}```", page
    )
    links = [
        f"[{label}]: {address}"
        for label, address in _REFERENCES.items()
        if f"][{label}]" in page and f"\n[{label}]: " not in page
    ]
    apart = "\n" if page.rpartition("\n")[2].startswith("[") else "\n\n"
    return page + apart + "\n".join(links) if links else page


def _patched(source: str, diff: str) -> str:
    """A source without its markers, after the changes of a diff, whose hunks are separated by `@@`."""
    lines, at = [_MARKER.sub("", line).rstrip() for line in source.splitlines()], 0
    for hunk in diff.split("@@\n"):
        rows = [(row[:1], row[1:]) for row in hunk.splitlines()]
        old = [text for sign, text in rows if sign != "+"]
        while lines[at : at + len(old)] != old:
            at += 1
            if at > len(lines):
                raise ValueError(f"the diff of a page does not fit its Bad block: {old}")
        new = [text for sign, text in rows if sign != "-"]
        lines[at : at + len(old)] = new
        at += len(new)
    return "".join(f"{line}\n" for line in lines)


def blocks(page: str, heading: str) -> list[str]:
    """The Python blocks of a page between a heading and the next; none where it has no such heading."""
    start = page.find(f"\n{heading}\n")
    ends = [page.find(f"\n{other}", start + 1) for other in ORDER]
    end = min((end for end in ends if end > start), default=len(page))
    return _BLOCK.findall(page[start:end]) if start >= 0 else []
