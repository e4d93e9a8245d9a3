"""Verbs that plan and explain, and change nothing: plans, rules, checkpoints, accuracy."""
