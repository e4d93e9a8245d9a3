"""Orders and groups findings for people and programs. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sparkfleet.doctor.findings import Finding, Severity
from sparkfleet.doctor.switch_pairs import common_causes
from sparkfleet.specs.fields import escape
from sparkfleet.values import Value

REPORT_VERSION = 1
"""Version of the JSON; it changes if a field is removed or changes its meaning."""

LISTED = (Severity.ERROR, Severity.WARNING, Severity.INFO)


class FindingGroup(Value):
    """The findings about one node, link, or the fleet, worst first."""

    scope: str
    subject: str
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """Severity of the worst finding."""
        return min((finding.severity for finding in self.findings), key=lambda one: one.rank)


class DoctorReport(Value):
    """All findings about a fleet, grouped."""

    fleet: str
    groups: tuple[FindingGroup, ...]
    """Worst first; of equals links, then nodes, then the fleet, because a bad link makes nodes look bad."""

    @classmethod
    def of(cls, fleet: str, findings: Iterable[Finding]) -> DoctorReport:
        """A report of findings in any order."""
        by_subject: dict[tuple[str, str], list[Finding]] = defaultdict(list)
        for finding in findings:
            by_subject[finding.scope, finding.subject].append(finding)
        groups = [
            FindingGroup(scope=scope, subject=subject, findings=tuple(sorted(found, key=_badness)))
            for (scope, subject), found in by_subject.items()
        ]
        order = {"link": 0, "node": 1, "fleet": 2}
        return cls(
            fleet=fleet,
            groups=tuple(sorted(groups, key=lambda one: (one.worst.rank, order[one.scope]))),
        )

    def count(self, severity: Severity) -> int:
        """Number of findings of that severity."""
        return sum(finding.severity is severity for group in self.groups for finding in group.findings)

    @property
    def failed(self) -> bool:
        """True if something has to be repaired."""
        return self.count(Severity.ERROR) > 0

    @property
    def summary(self) -> str:
        """`2 errors, 1 warning; 85 checks fine, 4 not known`."""
        errors, warnings = self.count(Severity.ERROR), self.count(Severity.WARNING)
        bad = (
            f"{_some(errors, 'error')}, {_some(warnings, 'warning')}"
            if errors or warnings
            else "Nothing is wrong"
        )
        unknown = self.count(Severity.UNKNOWN)
        rest = f"{self.count(Severity.OK)} checks fine" + (f", {unknown} not known" if unknown else "")
        return f"{bad}; {rest}"

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "version": REPORT_VERSION,
            "fleet": self.fleet,
            "failed": self.failed,
            "counts": {severity.value: self.count(severity) for severity in Severity},
            "findings": [
                finding.model_dump(mode="json") for group in self.groups for finding in group.findings
            ],
        }


def lines(report: DoctorReport, *, everything: bool = False) -> Iterator[tuple[Severity | None, str]]:
    """The report for a person, line by line, with the severity that colours it; None: a heading or plain text.

    A finding that several nodes have in the same words is shown once, at the first of them, with the names of the others;
    so is one that pairs of nodes at a switch have for one cause.
    """
    alike = _alike(report)
    causes = {
        _key(cause.findings[0]): cause
        for cause in common_causes(one for group in report.groups for one in group.findings)
    }
    told = {_key(finding) for cause in causes.values() for finding in cause.findings[1:]}
    for group in report.groups:
        new = [finding for finding in group.findings if _key(finding) not in told]
        shown = [finding for finding in new if everything or finding.severity in LISTED]
        unknown = [] if everything else [one for one in new if one.severity is Severity.UNKNOWN]
        if not shown and not unknown:
            continue
        told.update(map(_key, (*shown, *unknown)))
        yield None, f"{group.scope} {group.subject}"
        for finding in shown:
            yield from _finding(finding)
            yield from _others(alike[_key(finding)])
            if cause := causes.get(_key(finding)):
                yield None, f"          {cause.words}"
        yield from _unknown(unknown, alike)
        yield None, ""


def _key(finding: Finding) -> tuple[str, ...]:
    """Equal for findings that differ by nothing but the node's name. Other scopes are never equal."""
    what, subject = finding.what, finding.subject
    if finding.scope == "node":
        what, subject = re.sub(rf"(?<![\w.-]){re.escape(subject)}(?![\w-])", "", what), ""
    return (finding.id, finding.severity, finding.scope, subject, what, finding.means, *finding.do)


def _alike(report: DoctorReport) -> dict[tuple[str, ...], list[str]]:
    """Subjects by the key of their findings, in the report's order."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for group in report.groups:
        for finding in group.findings:
            found[_key(finding)].append(finding.subject)
    return found


def _others(subjects: Sequence[str]) -> Iterator[tuple[None, str]]:
    if rest := list(dict.fromkeys(subjects))[1:]:
        yield None, f"          The same on {', '.join(rest)}."


def _finding(finding: Finding) -> Iterator[tuple[Severity | None, str]]:
    yield finding.severity, f"  {finding.severity.value:<8}{escape(finding.what)}   [{finding.id}]"
    if finding.means:
        yield None, f"          {escape(finding.means)}"
    for step in finding.do:
        yield None, f"          → {escape(step)}"


def _unknown(
    findings: Sequence[Finding], alike: Mapping[tuple[str, ...], Sequence[str]]
) -> Iterator[tuple[Severity | None, str]]:
    """One line per reason and set of nodes: a missing tool leaves a dozen checks undecided."""
    reasons: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for finding in findings:
        reasons[_reason(finding), tuple(alike[_key(finding)])].append(finding.id)
    for (reason, subjects), ids in reasons.items():
        listed = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        yield Severity.UNKNOWN, f"  {Severity.UNKNOWN.value:<8}{escape(reason)}   [{listed}]"
        yield from _others(subjects)


def _reason(finding: Finding) -> str:
    """Text after "because"; the facts that rules lack are shown only with `--all`."""
    if "for lack of " in finding.what:
        return "rules that need facts that were not read"
    return finding.what.partition("because ")[2] or finding.what


def _badness(finding: Finding) -> int:
    return finding.severity.rank


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
