"""Recorders: what a run notes about losses, gradients and updates."""
