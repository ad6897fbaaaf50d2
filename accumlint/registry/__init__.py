"""The installed packs of rules, and their measured accuracy."""
