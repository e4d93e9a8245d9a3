"""A paced engine, the clients of a load, and the gateways that stand between them: for `benchmarks/gateway.py`."""
