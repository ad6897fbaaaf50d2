"""The rules that come with accumlint."""
