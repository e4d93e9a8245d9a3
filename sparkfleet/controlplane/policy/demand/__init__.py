"""Deployments on demand: which of them are loaded, by claims on memory, and which end for others. Pure."""
