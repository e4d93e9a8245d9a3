"""A paced engine, the clients of a load, and the gateways between them: for `benchmarks/gateway.py`."""
