"""State machines of the runtime: plain calls in, envelopes out, state in a backend."""
