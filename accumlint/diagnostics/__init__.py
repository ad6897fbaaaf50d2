"""From traces to diagnostics: judging, wording, location, suppression and the choice of a fix."""
