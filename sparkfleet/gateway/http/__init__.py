"""HTTP/1.1 of clients: the listening socket, connections with their limits, and answers, under an ASGI application."""
