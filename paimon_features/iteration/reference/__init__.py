"""The reference executor: runs a program in one process; Flink has to agree with it."""
