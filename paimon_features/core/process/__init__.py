"""What belongs to a process: its signals, ports, identity, callbacks and traces."""
