"""The page at `/` of the gateway, and the HTTP API that it calls."""
