"""Runs the command as `python -m accumlint`."""

import os
import sys

# Python puts the current folder first, which may be the tree that is checked: nothing is imported from there.
if sys.path[:1] == [os.getcwd()] and not __file__.startswith(os.path.join(os.getcwd(), "")):
    del sys.path[0]

from accumlint.cli import main

if __name__ == "__main__":
    main()
