"""The ranks of a group: each held on its node, all started and watched together."""
