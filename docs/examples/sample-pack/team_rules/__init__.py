"""Rules of ours for accumlint."""
