"""Nodes by kind, links between them, and the engine stacks that each can run."""
