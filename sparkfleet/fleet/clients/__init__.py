"""Calls of a client of the endpoint: a question, the route of a request, and the configuration of clients."""
