"""The endpoints: features, predictions, models, administration, OpenAPI."""
