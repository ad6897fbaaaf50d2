"""Jupyter notebooks: read as one program, whose places and edits are told in cells and in the file."""

from accumlint.notebook.cells import Notebook
from accumlint.notebook.notebook_json import read

__all__ = ["Notebook", "read"]
