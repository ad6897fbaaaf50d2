"""The sandbox inside the process: kernel filters, audit hooks, intact results."""
