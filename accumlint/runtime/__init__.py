"""Watches training scripts as they run: observers in the script's processes, and the judge of what they noted."""
