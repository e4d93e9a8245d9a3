"""Inventories and deployments: strict, frozen models; every error names file, line and field."""
