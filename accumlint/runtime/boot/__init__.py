"""The folder that `accumlint run` puts first on PYTHONPATH, from which Python imports `sitecustomize`."""
