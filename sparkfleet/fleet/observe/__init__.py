"""Prometheus, Alertmanager and Grafana for a fleet: their files and their containers."""
