"""The running process: signals, ports, identity, callbacks and traces."""
