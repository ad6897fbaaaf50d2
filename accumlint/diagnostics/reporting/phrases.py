"""Words that several formats use."""


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 file", "2 files"."""
    return f"{number} {noun}" if number == 1 or noun == "info" else f"{number} {noun}s"
