"""Ranks on a node: supervisors, leases, processes, containers and logs."""
