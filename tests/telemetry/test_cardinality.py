"""The number of series grows with nodes and groups alone, and not with their product, with clients or with requests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from large_fleet import busy_gateway, large_fleet
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkfleet.gateway.access.allowed_paths import POSTED

PER_GROUP = 250
"""Half of them the phases of a start: a histogram of 18 series for each."""
PER_NODE = 90
PER_MODEL = 150
"""Four histograms of about 20 series, and a series per path and status."""


def series(registry):
    """Name and labels of every series of a page."""
    found = text_string_to_metric_families(generate_latest(registry).decode())
    return {(one.name, *sorted(one.labels.items())) for family in found for one in family.samples}


async def controller(directory, nodes, groups):
    directory = directory / f"{nodes}-{groups}"
    directory.mkdir()
    return len(series((await large_fleet(directory, nodes, groups)).metrics.registry))


async def test_the_controllers_page_grows_with_nodes_plus_groups(tmp_path):
    one = await controller(tmp_path, 1, 1)
    node, group = await controller(tmp_path, 2, 1) - one, await controller(tmp_path, 1, 2) - one
    assert 30 < node <= PER_NODE
    assert 100 < group <= PER_GROUP
    assert await controller(tmp_path, 3, 4) == one + 2 * node + 3 * group


def test_the_gateways_page_grows_with_models_and_three_series_for_a_key_of_each():
    def count(models, keys):
        names = [f"model-{index}" for index in range(models)]
        return len(series(busy_gateway(names, keys, ["/v1/chat/completions"]).registry))

    model = count(2, 0) - count(1, 0)
    assert 60 < model <= PER_MODEL
    assert count(3, 5) == count(1, 0) + 2 * model + 3 * 5 * 3


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/../x", "/wp-admin", "/v1/models/a\nb", "/" + "x" * 9000]
)
def test_paths_of_a_client_make_no_series(path):
    known = series(busy_gateway(["m"], 1, [*POSTED, "/other"]).registry)
    assert series(busy_gateway(["m"], 1, [*POSTED, "/other", path]).registry) == known


@pytest.mark.full
def test_a_scrape_of_eight_nodes_and_sixteen_groups_takes_at_most_one_percent_of_a_core():
    """CPU of the process, not time that passes: half of the limit on a busy machine (docs/metrics.md)."""
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "scrape.py"
    argv = [
        sys.executable,
        script,
        "--nodes",
        "8",
        "--groups",
        "16",
        "--keys",
        "20",
        "--rounds",
        "10",
        "--json",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    rows = {row["page"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == {"controller", "gateway"}
    assert all(row["series"] > 3000 and row["core_percent"] <= 1 for row in rows.values()), rows
    assert done.returncode == 0, done.stderr
