"""Decides, with reasons: enumerates, sizes, judges and ranks candidates and places them. Pure."""
