"""Desired state, events, reports and the snapshot that decisions are made from."""
