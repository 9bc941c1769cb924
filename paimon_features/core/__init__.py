"""What every room uses: types, times, documents, configuration, windows, expressions, errors."""
