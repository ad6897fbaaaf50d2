"""Code that runs in the worker processes of `confirm`: the only part of accumlint that imports torch."""
