"""Stubs and fakes: values, data, networks, losses and optimizers for what a run lacks."""
