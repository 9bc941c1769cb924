"""First steps: proposed definitions for a file, a trial, samples of a topic."""
