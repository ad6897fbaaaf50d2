"""Jupyter notebooks: read as one program, whose places and edits are told in cells and in the file."""

from accumlint.notebook.book import Notebook
from accumlint.notebook.reading import read

__all__ = ["Notebook", "is_notebook", "read"]


def is_notebook(file: str) -> bool:
    return file.endswith(".ipynb")
