"""What confirming gave, for a terminal, as HTML and as JSON."""
