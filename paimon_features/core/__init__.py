"""The foundation: types, times, documents, configuration, windows, expressions, errors."""
