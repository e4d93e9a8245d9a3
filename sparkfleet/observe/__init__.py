"""What is seen: metrics, and where Prometheus finds them."""
