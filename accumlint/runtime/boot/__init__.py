"""The folder that `accumlint run` puts first on PYTHONPATH, for Python to import `sitecustomize` from."""
