"""Executes a program abstractly and records what happens to the gradients."""

from accumlint.tracing.exploring import Exploration, explore

__all__ = ["Exploration", "explore"]
