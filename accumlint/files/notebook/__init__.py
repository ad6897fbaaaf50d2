"""Jupyter notebooks: read as one program, whose places and edits are told in cells and in the file."""

from accumlint.files.notebook.cells import Notebook
from accumlint.files.notebook.notebook_json import read

__all__ = ["Notebook", "read"]
