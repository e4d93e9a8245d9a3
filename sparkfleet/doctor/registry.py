"""All checks, in report order among equal severities."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.doctor.check import Check
from sparkfleet.doctor.checks import (
    boots,
    clock,
    container,
    disk,
    exposure,
    gpu,
    identity,
    links,
    memory,
    privileges,
    transport,
    versions,
)
from sparkfleet.doctor.findings import Finding, Severity
from sparkfleet.doctor.rule_checks import rule_findings
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot, Silence

CHECKS: tuple[Check, ...] = (
    *identity.CHECKS,
    *gpu.CHECKS,
    *memory.CHECKS,
    *boots.CHECKS,
    *links.CHECKS,
    *transport.CHECKS,
    *clock.CHECKS,
    *versions.CHECKS,
    *container.CHECKS,
    *disk.CHECKS,
    *privileges.CHECKS,
    *exposure.CHECKS,
)

SILENT, CHANGED = "node-silent", "host-key-changed"
"""Findings about a node that did not answer, so that no check applies."""

COVERED = frozenset(rule for check in CHECKS for rule in check.rules)
"""Rules of knowledge/rules/rules.yaml that a check covers."""


def examine(fleet: FleetReadings) -> tuple[Finding, ...]:
    """All findings about a fleet, worst first. Pure."""
    found = [*_silent(fleet), *(one for check in CHECKS for one in check.findings(fleet))]
    found += rule_findings(fleet, COVERED)
    return tuple(sorted(found, key=lambda finding: finding.severity.rank))


def _silent(fleet: FleetReadings) -> Iterator[Finding]:
    for node in fleet.nodes:
        if node.silence is not None:
            yield _silence(node, node.silence)


def _silence(node: NodeSnapshot, silence: Silence) -> Finding:
    return Finding(
        id=CHANGED if silence.key_changed else SILENT,
        severity=Severity.ERROR,
        scope="node",
        subject=node.name,
        what=silence.what,
        means=silence.means,
        do=(silence.do,) if silence.do else (),
    )
