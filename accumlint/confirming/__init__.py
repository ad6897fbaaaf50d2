"""Proves findings by running the flagged loop: plan, launch, measurement, verdict."""
