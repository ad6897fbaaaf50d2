"""Observes training scripts as they run: observers in the script's processes, and checks of the recorded events."""
