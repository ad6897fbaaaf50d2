"""Symptoms of defects, each a question to the measured passes."""
