"""The front door: an ASGI application that speaks the OpenAI API, and the Serve deployment that hosts it."""
