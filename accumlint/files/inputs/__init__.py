"""What is checked: discovered files, documents and notebooks, test code, and the cache of earlier results."""
