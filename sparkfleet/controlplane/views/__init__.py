"""The state as others see it: the routing table of the gateways, metrics, the page."""
