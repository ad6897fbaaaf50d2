"""Runs the command as `python -m accumlint`."""

from accumlint.cli import main

if __name__ == "__main__":
    main()
