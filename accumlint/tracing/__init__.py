"""Executes a program abstractly and records what happens to the gradients."""

from accumlint.tracing.callers import explore
from accumlint.tracing.exploration import Exploration
from accumlint.tracing.exploration import explore as explore_alone

__all__ = ["Exploration", "explore", "explore_alone"]
