"""Use-cases of a fleet: the calls behind the CLI, for a web page or another program as well.

They take values and return values, and report progress to a callback as typed events (`events.py`). Nothing here prints,
asks a person or ends the process.
"""
