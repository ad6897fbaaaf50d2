"""The installed packs of rules, their examples and their measured accuracy."""
