"""Use-cases of a fleet: the calls that the CLI makes, and that a page or another program makes as well.

They take values and return values. What happens meanwhile is given to a callback as typed events (`events.py`); nothing here
prints, asks a person or ends the process.
"""
