"""docs/metrics.md: every series by its page. `python -m sparkfleet.telemetry.metrics_page > docs/metrics.md`."""

from __future__ import annotations

import sys

from sparkfleet.telemetry.catalogue import CATALOGUE, LABELS, MetricSpec, Page

_HEAD = """\
# Metrics

Written by `python -m sparkfleet.telemetry.metrics_page` from `sparkfleet/telemetry/catalogue.py`; a test compares, and
another one checks that nothing is exported that is not here.

Two pages, both on loopback of the head: the gateway's and the controller's. `GET /targets` of the controller's API lists
them and the engines' own pages for Prometheus (`http_sd`); engines answer with the token in `metrics.token` of the state
directory. `sparkfleet_node_*` and `sparkfleet_rail_*` are read by an actor on each node and exported by the controller, so
that no port of ours is open on a node; memory comes from the host, because a GB10's driver does not report it. What a node
or an engine does not report is absent, never 0.

What a scrape costs, by `python benchmarks/scrape.py --nodes 8 --groups 16 --keys 20` (every reading present, every cause,
phase and status counted once, every key used on every model; one core of a busy virtual machine of two, a scrape every
10 s): the controller's page has 4,492 series in 395 kB and takes 28 ms of CPU, 0.3 % of a core; the gateway's has 3,041
series in 214 kB and takes 13 ms, 0.1 %. With `--groups 128` it is 31,820 and 24,321 series, and 2.2 and 1.1 %: scrape less
often there. The controller's page grows with nodes plus groups, the gateway's with models and with keys that use them.
"""

_TITLES: dict[Page, str] = {
    "gateway": "The gateway's page",
    "controller": "The controller's page",
    "both": "On both pages",
}


def render() -> str:
    """The page."""
    return "\n".join([_HEAD, *(_section(page, title) for page, title in _TITLES.items()), _labels()])


def _section(page: Page, title: str) -> str:
    rows = [_row(one) for one in CATALOGUE if one.page == page]
    head = ["| series | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    return "\n".join([f"## {title}", "", *head, *rows, ""])


def _row(one: MetricSpec) -> str:
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{one.name}` | {one.kind} | {one.unit} | {labels} | {one.meaning} |"


def _labels() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in LABELS.items()]
    return "\n".join(["## Labels", "", "| label | meaning |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
