"""Feedback: per-sample training results written to the lake, and difficulty read back."""
