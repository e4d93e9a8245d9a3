"""Applies the doctor's rules of `knowledge/rules/rules.yaml` to the facts of the nodes. Pure.

A rule that a check covers (`Check.rules`) is not applied again. If a rule cannot be decided, the finding has the
missing facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sparkfleet.doctor import thresholds
from sparkfleet.doctor.findings import Finding, Severity
from sparkfleet.doctor.machine_kind import MachineKind, recognise
from sparkfleet.doctor.snapshot import FleetReadings, NodeSnapshot
from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.knowledge.rules.rules import Rule, doctor_rules
from sparkfleet.knowledge.versions import Truth
from sparkfleet.units import GB

SEVERITIES = {
    "garbage": Severity.ERROR,
    "fails": Severity.ERROR,
    "slow": Severity.WARNING,
    "limits": Severity.WARNING,
}


def rule_findings(fleet: FleetReadings, covered: Collection[str]) -> Iterator[Finding]:
    """Findings of the rules for every Spark of the fleet."""
    rules = [rule for rule in doctor_rules() if rule.id not in covered]
    for node in fleet.answered:
        if not _is_spark(node):
            continue
        situation = situation_of(node, fleet)
        for rule in rules:
            yield _finding(rule, node.name, rule.applies(situation), situation)


def _is_spark(node: NodeSnapshot) -> bool:
    if node.identity is None:
        return False
    return recognise(node.identity, node.pci or (), node.gpus or ()).kind is MachineKind.SPARK


def _finding(rule: Rule, node: str, truth: Truth, situation: RuleContext) -> Finding:
    lacking = [fact for fact in rule.facts if getattr(situation, fact) is None]
    wordings = {
        Truth.YES: (SEVERITIES[rule.severity], f"{node}: {rule.title}", rule.symptom),
        Truth.NO: (Severity.OK, f"does not apply: {rule.title}", ""),
        Truth.UNKNOWN: (Severity.UNKNOWN, f"{rule.title}: not known, for lack of {', '.join(lacking)}", ""),
    }
    severity, what, means = wordings[truth]
    return Finding(
        id=rule.id,
        severity=severity,
        scope="node",
        subject=node,
        what=what,
        means=means,
        do=_steps(rule) if truth is Truth.YES else (),
        source=f"knowledge/rules/rules.yaml {rule.id}: {rule.sources[0]}",
    )


def _steps(rule: Rule) -> tuple[str, ...]:
    remedy = rule.remedy
    pairs = tuple(f"{name}={value}" for name, value in remedy.env)
    others = (remedy.version, remedy.image, remedy.alternative, remedy.check, remedy.note)
    return (*remedy.steps, *remedy.flags, *pairs, *(one for one in others if one))


def situation_of(node: NodeSnapshot, fleet: FleetReadings) -> RuleContext:
    """Facts of a node in the terms of the rules, without its workload."""
    return RuleContext(
        device="cuda",
        nodes=float(len(fleet.nodes)),
        node_address=node.address or None,
        **_system(node),
        **_memory(node),
        **_gpu(node),
        **_host(node),
        **_rails(node, fleet),
    )


Facts = dict[str, Any]


def _system(node: NodeSnapshot) -> Facts:
    identity = node.identity
    if identity is None:
        return {}
    driver = node.gpus[0].driver if node.gpus else identity.driver_module
    torn = bool(node.gpus and identity.driver_module and identity.driver_module != node.gpus[0].driver)
    return {
        "driver": driver or None,
        "kernel_os": identity.kernel or None,
        "driver_mismatch": torn if driver and identity.driver_module else None,
    }


def _memory(node: NodeSnapshot) -> Facts:
    facts: Facts = {}
    if node.memory:
        facts |= {"unaccounted_gb": node.memory.unaccounted / GB, "swap_gb": node.memory.swap_total / GB}
    if node.kernel:
        facts["kho_off"] = node.kernel.kho_off
        facts["ufw_active"] = node.kernel.firewall
        if node.kernel.swappiness is not None:
            facts["swappiness"] = float(node.kernel.swappiness)
    if node.gpu_processes is not None:
        facts["compute_processes"] = float(len(node.gpu_processes))
    return facts


def _gpu(node: NodeSnapshot) -> Facts:
    gpu = node.gpus[0] if node.gpus else None
    facts: Facts = {}
    if gpu is not None:
        facts |= {
            "gpu_util_percent": gpu.utilization_percent,
            "gpu_power_w": gpu.power_w,
            "sm_clock_mhz": gpu.sm_clock_mhz,
        }
    if node.kernel_log is not None:
        facts["kernel_log_no_memory"] = node.kernel_log.out_of_gpu_memory > 0
        facts["cx7_power_warning"] = node.kernel_log.slot_power
    if node.pci is not None:
        facts["cx7_present"] = any(device.id == "15b3:1021" for device in node.pci)
    return facts


def _host(node: NodeSnapshot) -> Facts:
    facts: Facts = {}
    if node.services:
        facts |= {"linger": node.services.linger, "remove_ipc": node.services.remove_ipc}
        facts["hottest_zone_c"] = node.services.hottest_c
    if node.locked_memory:
        facts["memlock_unlimited"] = node.locked_memory.allows(thresholds.LOCKED_BYTES)
    if node.packages is not None:
        facts["mlnx_fw_updater"] = "mlnx-fw-updater" in node.packages
    if node.time_sync:
        facts["clock_synced"] = node.time_sync.synchronised
    return facts


def _rails(node: NodeSnapshot, fleet: FleetReadings) -> Facts:
    links = [link for link in fleet.links if node.name in link.nodes]
    if not links:
        return {}
    measured = [
        rail.gbit_per_s
        for path in fleet.paths or ()
        if node.name in path.nodes
        for rail in path.rails
        if rail.gbit_per_s is not None and rail.measured_with == "ib_write_bw"
    ]
    speeds = [one.speed_mb_per_s for one in node.settings.values() if one.speed_mb_per_s is not None]
    return {
        "topology": "switch" if links[0].switch else "direct" if len(links) == 1 else "ring",
        "rails": float(len(links[0].rails)),
        "rail_gbps": min(measured, default=None),
        "link_mbps": float(min(speeds)) if speeds else None,
    }
