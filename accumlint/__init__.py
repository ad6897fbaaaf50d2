"""A linter for gradient-accumulation defects in PyTorch training code."""

__version__ = "0.1.0"
