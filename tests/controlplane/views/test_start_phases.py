"""The duration of each phase of a start, and not the time for which its actor was away."""

from clocks import Clock
from controller_world import report

from sparkfleet.controlplane.views.start_phases import StartPhases
from sparkfleet.engines.startup_phases import StartupPhase
from sparkfleet.group.report import GroupPhase
from sparkfleet.telemetry.metrics import ControlMetrics


def durations(metrics):
    """Sum of the durations of each phase."""
    return {
        one.labels["phase"]: one.value
        for family in metrics.start_phase.collect()
        for one in family.samples
        if one.name.endswith("_sum")
    }


def test_the_time_for_which_a_node_was_away_is_no_duration_of_its_phase():
    """An hour without power was an hour of loading."""
    clock, metrics = Clock(), ControlMetrics()
    phases = StartPhases(metrics, clock)
    loading = report(step=StartupPhase(phase="loading"))
    for passes_s in (0, 5, 3600, 2):
        clock.now += passes_s
        phases.see(loading)
    clock.now += 2
    phases.see(report(phase=GroupPhase.READY))
    assert durations(metrics) == {"loading": 4.0}
