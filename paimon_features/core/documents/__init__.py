"""Text and JSON that leave or enter the process: strict, typed, signed, redacted."""
