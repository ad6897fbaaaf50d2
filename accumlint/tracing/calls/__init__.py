"""Calls by what is called: built-in functions, libraries, project functions, and calls that cannot be followed."""
