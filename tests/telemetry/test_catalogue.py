"""The catalogue against what is exported, both ways."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkfleet.telemetry import catalogue, metrics_page
from sparkfleet.telemetry.catalogue import CATALOGUE, LABELS, START_PHASES, MetricSpec
from sparkfleet.telemetry.loop_series import TimesByModel, Totals
from sparkfleet.telemetry.metrics import ControlMetrics, GatewayMetrics
from sparkfleet.telemetry.samples import sample

BY_FAMILY = {one.family: one for one in CATALOGUE}
UNBOUNDED = {"prompt", "request", "request_id", "id", "client", "address", "user", "url"}


def test_every_name_follows_the_conventions_of_prometheus():
    for one in CATALOGUE:
        assert re.fullmatch(r"sparkfleet_[a-z][a-z0-9_]*[a-z0-9]", one.name), one.name
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert bool(one.buckets) == (one.kind == "histogram"), one.name
        assert one.meaning.endswith(".") or one.name == "sparkfleet_build_info", one.name
        suffix = {"seconds": "_seconds", "timestamp": "_seconds", "bytes": "_bytes", "watts": "_watts"}.get(
            one.unit, ""
        )
        assert one.name.removesuffix("_total").endswith(suffix), (one.name, one.unit)


def test_names_are_unique_and_labels_are_explained_and_bounded():
    assert len({one.name for one in CATALOGUE}) == len(CATALOGUE) == len(BY_FAMILY)
    used = {label for one in CATALOGUE for label in one.labels}
    assert used == LABELS.keys()
    assert not used & UNBOUNDED


@pytest.mark.parametrize(("make", "page"), [(GatewayMetrics, "gateway"), (ControlMetrics, "controller")])
def test_what_a_page_registers_is_in_the_catalogue(make, page):
    metrics = make()
    made = {
        m.name: (m.type, c.spec.labels if isinstance(c, Totals | TimesByModel) else c._labelnames)
        for c in metrics.registry._collector_to_names
        for m in c.describe()
    }
    for name, (kind, labels) in made.items():
        spec = BY_FAMILY[name]
        assert (spec.kind, tuple(spec.labels)) == (kind, tuple(labels)), name
        assert spec.page in (page, "both"), name
    # Others are samples: tests/controlplane/views/test_metrics_export.py has the controller's, test_app.py the gateway's.
    missing = {s.family for s in CATALOGUE if s.page in (page, "both")} - made.keys()
    if page == "gateway":
        assert missing == {"sparkfleet_requests_waiting"}
    assert {BY_FAMILY[name].kind for name in missing} <= {"gauge", "counter"}


def test_no_metric_is_only_in_the_catalogue():
    """An alert on one that no code counts or reads would never fire."""
    own = Path(catalogue.__file__)
    used = {
        word
        for file in own.parents[1].rglob("*.py")
        if file != own
        for word in re.findall(r"[A-Z_]{3,}", file.read_text())
    }
    assert {name for name, one in vars(catalogue).items() if isinstance(one, MetricSpec)} - used == set()


def test_a_sample_with_other_labels_is_refused():
    (spec,) = (one for one in CATALOGUE if one.name == "sparkfleet_group_state")
    assert sample(spec, "d", "g", "ready", value=True).value == 1
    with pytest.raises(ValueError, match="sparkfleet_group_state has the labels"):
        sample(spec, "d", "g", value=1)


def test_samples_are_read_whenever_the_page_is():
    metrics, now = ControlMetrics(), {"spark1": 1}
    (spec,) = (one for one in CATALOGUE if one.name == "sparkfleet_node_joined")
    metrics.show(lambda: [sample(spec, name, value=value) for name, value in now.items()])
    assert metrics.registry.get_sample_value(spec.name, {"node": "spark1"}) == 1
    now.clear()
    now["spark2"] = 0
    families = {f.name: f for f in text_string_to_metric_families(generate_latest(metrics.registry).decode())}
    assert [(s.labels, s.value) for s in families[spec.name].samples] == [({"node": "spark2"}, 0)]


def test_the_phases_of_a_start_are_those_of_groups_and_of_engines_logs():
    from sparkfleet.engines.startup_phases import ORDER
    from sparkfleet.group.report import GroupPhase

    assert set(START_PHASES) == {"preparing", "starting", "probing", *ORDER}
    assert {"preparing", "starting", "probing"} <= {phase.value for phase in GroupPhase}


def test_the_page_of_metrics_is_up_to_date():
    page = Path(metrics_page.__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == metrics_page.render(), (
        "python -m sparkfleet.telemetry.metrics_page > docs/metrics.md"
    )
