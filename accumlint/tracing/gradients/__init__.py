"""Losses, gradients and updates: what an abstract run does to them."""
