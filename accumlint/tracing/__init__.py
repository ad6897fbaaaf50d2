"""Executes a program abstractly and records what happens to the gradients."""

from accumlint.tracing.callers import explore
from accumlint.tracing.exploration import Exploration

__all__ = ["Exploration", "explore"]
