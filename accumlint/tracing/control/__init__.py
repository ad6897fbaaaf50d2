"""Control flow: guards, loops, exits, regions and equivalent paths."""
