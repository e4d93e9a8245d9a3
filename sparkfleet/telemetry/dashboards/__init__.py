"""Grafana's dashboards: values here, JSON by `scripts/grafana.py`."""
