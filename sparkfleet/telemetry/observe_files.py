"""Files for Prometheus, Alertmanager and Grafana on a fleet's head."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from sparkfleet.telemetry.alerts import ALERTS
from sparkfleet.telemetry.dashboards.boards import DASHBOARDS
from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file
from sparkfleet.values import Value

EVERY = "10s"
"""Interval of scrapes and of the discovery of targets."""
OWNERS = frozenset({"alertmanager.yml"})
"""Files that their owner completes: never overwritten."""


class ObservePlace(Value):
    """Addresses and paths that the files name. All of it is on the head."""

    api: str
    """URL of the controller's API."""
    token_file: str
    """The token for the engines' pages (`FleetPaths.metrics_token`)."""
    fleet: str
    prometheus: str = "127.0.0.1:9090"
    alertmanager: str = "127.0.0.1:9093"
    dashboards: str = "/etc/grafana/dashboards"
    """Directory of the dashboards as Grafana sees it."""


def observe_files(place: ObservePlace) -> dict[str, str]:
    """Content of each file, by its path in the directory."""
    found = {
        "prometheus.yml": _yaml(_prometheus(place)),
        "rules/recording.yaml": rule_file(RECORDING, "sparkfleet/telemetry/recording.py"),
        "rules/alerts.yaml": rule_file(ALERTS, "sparkfleet/telemetry/alerts/"),
        "alertmanager.yml": _yaml(_alertmanager()),
        "grafana/provisioning/datasources/sparkfleet.yaml": _yaml(_source(place)),
        "grafana/provisioning/dashboards/sparkfleet.yaml": _yaml(_provider(place)),
        "README.md": _README.format(place=place),
    }
    for board in DASHBOARDS:
        shipped = files("sparkfleet.telemetry.dashboards") / "json" / f"{board.uid}.json"
        found[f"grafana/dashboards/{board.uid}.json"] = shipped.read_text()
    return found


def _prometheus(place: ObservePlace) -> dict[str, Any]:
    return {
        "global": {
            "scrape_interval": EVERY,
            "evaluation_interval": "15s",
            "external_labels": {"fleet": place.fleet},
        },
        "rule_files": ["rules/*.yaml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [place.alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": "sparkfleet",
                "http_sd_configs": [{"url": f"{place.api}/targets", "refresh_interval": EVERY}],
                "authorization": {"credentials_file": place.token_file},
            }
        ],
    }


def _alertmanager() -> dict[str, Any]:
    inhibits = [
        {
            # Alerts without the label, as of a key's end, would be equal in it to each other.
            "source_matchers": ["severity = critical", f'{subject} != ""'],
            "target_matchers": ["severity =~ warning|info"],
            "equal": ["deployment", "node"],
        }
        for subject in ("deployment", "node")
    ]
    return {
        "route": {"receiver": "nobody", "group_by": ["alertname", "deployment", "node"]},
        "receivers": [{"name": "nobody"}],
        "inhibit_rules": inhibits,
    }


def _source(place: ObservePlace) -> dict[str, Any]:
    source = {
        "name": f"sparkfleet {place.fleet}",
        "uid": "sparkfleet",
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://{place.prometheus}",
        "isDefault": True,
        "jsonData": {"timeInterval": EVERY},
    }
    return {"apiVersion": 1, "datasources": [source]}


def _provider(place: ObservePlace) -> dict[str, Any]:
    provider = {
        "name": "sparkfleet",
        "folder": "sparkfleet",
        "type": "file",
        "allowUiUpdates": False,
        "options": {"path": place.dashboards},
    }
    return {"apiVersion": 1, "providers": [provider]}


def _yaml(document: dict[str, Any]) -> str:
    return "# Written by `sparkfleet observe config`.\n" + yaml.safe_dump(document, sort_keys=False)


_README = """\
# Prometheus, Alertmanager and Grafana for fleet {place.fleet}

Written by `sparkfleet observe config`; run it again after an update: it leaves `alertmanager.yml` as it is. All three
programs belong on the head: the controller at {place.api} and its list of targets are on loopback there.

- `prometheus --config.file=prometheus.yml --web.listen-address={place.prometheus}`. It reads the token in {place.token_file}
  as the fleet's user: engines answer only with it.
- `alertmanager.yml` sends nothing yet: add a receiver (mail, a webhook, a chat).
- Grafana: `grafana/provisioning` is a provisioning directory, and the dashboards belong in {place.dashboards}.

Every alert has a section of its name in docs/runbook.md, every series a line in docs/metrics.md.
"""
