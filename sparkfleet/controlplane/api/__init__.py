"""The controller's HTTP API, its models and its client."""
