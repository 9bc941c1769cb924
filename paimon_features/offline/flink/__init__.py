"""Historical features by Flink batch jobs."""
