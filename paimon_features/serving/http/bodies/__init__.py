"""Bodies of requests and replies in all formats, parsed strictly and with bounds."""
