"""What observes torch in a process of the user's: standard library and torch only."""
