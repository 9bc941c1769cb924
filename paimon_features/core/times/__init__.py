"""Times in UTC milliseconds, durations, the clock, and days of partitions."""
