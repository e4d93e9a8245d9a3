"""Packs deployments on the nodes of a fleet: groups for each variant, on the memory that the others leave."""
