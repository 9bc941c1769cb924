"""Configuration: ``paimon-features.toml``, and the settings of Kafka and of inputs."""
