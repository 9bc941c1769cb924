"""Column types, and the Arrow types of other programs."""
