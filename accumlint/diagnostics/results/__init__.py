"""Results as plain values: reports, loop diagrams, fingerprints, baselines, and their form in JSON."""
