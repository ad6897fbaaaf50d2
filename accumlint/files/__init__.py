"""Files and their bytes: safe reads and writes, decoding, .gitignore patterns, git, and work in parallel processes."""
