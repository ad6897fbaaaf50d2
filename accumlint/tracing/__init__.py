"""Executes a program abstractly and records what happens to the gradients."""

from accumlint.tracing.exploration import Exploration, explore

__all__ = ["Exploration", "explore"]
