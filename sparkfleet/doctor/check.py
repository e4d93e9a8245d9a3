"""Declares a check. Its parameters are its inputs; an input that is not known becomes the finding.

    @node_check("clock-skew", "the clock agrees with this machine's", source="…")
    def clock_skew(node: NodeSnapshot, clock: ClockOffset) -> Iterator[CheckFault]: …

`node`, `link`, `path` and `fleet` are the subject; every other parameter is a field of `NodeSnapshot` that must not be
None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparkfleet.doctor.findings import CheckFault, CheckScope, Finding, Severity, not_known
from sparkfleet.doctor.snapshot import FleetReadings, LinkSnapshot, NodeSnapshot, PathSnapshot

Look = Callable[..., Iterator[CheckFault]]

_VIEWS = frozenset({"node", "link", "path", "fleet"})


@dataclass(frozen=True)
class Check:
    """One check of a node, a link, a path or the fleet.

    Args:
        id: its name in findings; part of the public interface.
        title: the state without a fault.
        scope: per node, per link, or once.
        of_paths: per measured pair of nodes instead of per cable; its findings are about links nevertheless.
        needs: fields of `NodeSnapshot` without which it cannot be decided.
        look: the check itself.
        rules: ids of rules in `knowledge/rules/rules.yaml` that it covers.
        source: source of its threshold or its rule.
    """

    id: str
    title: str
    scope: CheckScope
    needs: tuple[str, ...]
    look: Look
    rules: tuple[str, ...] = ()
    source: str = ""
    of_paths: bool = False

    def findings(self, fleet: FleetReadings) -> Iterator[Finding]:
        """Findings about a fleet; one OK finding per subject without a fault."""
        match self.scope:
            case "node":
                for node in fleet.answered:
                    yield from self._about(node.name, self._of_node(node, fleet))
            case "link" if self.of_paths:
                for path in fleet.paths or ():
                    yield from self._about(path.name, self._of_path(path, fleet))
            case "link":
                for link in fleet.links:
                    yield from self._about(link.name, self._of_link(link, fleet))
            case "fleet":
                yield from self._about(fleet.name, self._lacking(fleet.answered) or self.look(fleet=fleet))

    def _of_node(self, node: NodeSnapshot, fleet: FleetReadings) -> Iterable[CheckFault]:
        return self._lacking((node,)) or self.look(**self._arguments(node, fleet))

    def _of_link(self, link: LinkSnapshot, fleet: FleetReadings) -> Iterable[CheckFault]:
        ends = [fleet.node(name) for name in link.nodes]
        silent = [node.name for node in ends if node.silence is not None]
        if silent:
            return [not_known(f"{self.title}: not known, because {' and '.join(silent)} did not answer")]
        return self._lacking(ends) or self.look(link=link, fleet=fleet)

    def _of_path(self, path: PathSnapshot, fleet: FleetReadings) -> Iterable[CheckFault]:
        if path.why_not:
            return [not_known(f"{self.title}: not known, because {path.why_not}")]
        return self.look(path=path, **self._views(fleet=fleet))

    def _arguments(self, node: NodeSnapshot, fleet: FleetReadings) -> dict[str, Any]:
        given: dict[str, Any] = {name: getattr(node, name) for name in self.needs}
        return given | self._views(node=node, fleet=fleet)

    def _views(self, **views: Any) -> dict[str, Any]:
        """The views that the check takes."""
        wanted = inspect.signature(self.look).parameters
        return {name: view for name, view in views.items() if name in wanted}

    def _lacking(self, nodes: Iterable[NodeSnapshot]) -> list[CheckFault]:
        return [
            not_known(f"{self.title}: not known of {node.name}, because {_why(node, field)}")
            for node in nodes
            for field in self.needs
            if getattr(node, field) is None
        ][:1]

    def _about(self, subject: str, faults: Iterable[CheckFault]) -> Iterator[Finding]:
        clean = True
        for fault in faults:
            clean = False
            yield Finding(
                id=self.id, scope=self.scope, subject=subject, source=self.source, **fault.model_dump()
            )
        if clean:
            yield Finding(
                id=self.id, severity=Severity.OK, scope=self.scope, subject=subject, what=self.title
            )


def _why(node: NodeSnapshot, field: str) -> str:
    return node.unknown.get(field, f"its {field.replace('_', ' ')} was not read")


def node_check(
    id: str,  # noqa: A002  # the public noun
    title: str,
    *,
    rules: tuple[str, ...] = (),
    source: str = "",
) -> Callable[[Look], Check]:
    """Declares a check of each node that answered."""

    def make(look: Look) -> Check:
        needs = tuple(name for name in inspect.signature(look).parameters if name not in _VIEWS)
        return Check(id, title, "node", needs, look, rules, source)

    return make


def _check(
    scope: CheckScope,
    id: str,  # noqa: A002  # the public noun
    title: str,
    *,
    needs: tuple[str, ...] = (),
    rules: tuple[str, ...] = (),
    source: str = "",
    of_paths: bool = False,
) -> Callable[[Look], Check]:
    return lambda look: Check(id, title, scope, needs, look, rules, source, of_paths)


link_check = partial(_check, "link")
"""Declares a check of each link whose nodes answered; `needs` applies to every end."""
path_check = partial(_check, "link", of_paths=True)
"""Declares a check of the measurements between two nodes. It has no `needs`: its input is the measurement."""
fleet_check = partial(_check, "fleet")
"""Declares a check of all nodes together; `needs` applies to every node that answered."""
