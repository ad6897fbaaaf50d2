"""Jupyter notebooks: read as one program, whose places and edits are told in cells and in the file."""

from accumlint.notebook.book import Notebook
from accumlint.notebook.reading import read

__all__ = ["Notebook", "read"]
