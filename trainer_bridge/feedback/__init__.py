"""Feedback: per-sample results of training steps into the lake, and difficulty read back."""
