"""The commands, each in the file of its name, with what they share in `options` and `output`."""
