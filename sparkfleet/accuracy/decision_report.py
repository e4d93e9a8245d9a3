"""Decisions with their regret as a table: JSON for machines, text for a terminal, Markdown for documentation. Pure."""

from __future__ import annotations

import json
from statistics import median

from sparkfleet.values import Value

UNPUBLISHED = 0.7
"""Share of the prediction with which an unpublished combination counts."""
UNSEEN = "The same decisions, made as if nothing of the model's family (its shapes) were published:"
EXPLAINED_FROM = 0.2
"""Regret above which the table has a reason."""


class ScoredDecision(Value):
    """One decision: the best published combination, the plan's choice, and the speed of both."""

    model: str
    nodes: int
    objective: str
    concurrency: int
    configurations: int
    best: str
    best_tps: float
    chosen: str = ""
    checkpoint: str = ""
    """Name and format that the choice serves."""
    groups: int = 0
    published_tps: float | None = None
    """Of the choice; None if it is unpublished."""
    predicted_tps: float | None = None
    best_refused: str = ""
    """The plan's reason against the best combination, if it has one."""
    refused: tuple[str, ...] = ()
    """Checkpoints that the plan refuses, with the reason."""
    unknown: tuple[str, ...] = ()
    """Checkpoints whose facts are not known by their name, with the reason."""

    by_sibling: bool = False
    """True if that is the speed of another model of the same shapes: nobody published the model's own."""
    ran: bool = False
    """True if the choice is published, under any load, for the model or another one of its shapes."""

    @property
    def unproven(self) -> bool:
        """True if the choice is unpublished."""
        return bool(self.chosen) and not self.ran

    @property
    def regret(self) -> float | None:
        """1 − published speed of the choice / best published speed, at least 0; None without a choice."""
        if not self.chosen:
            return None
        value = (
            UNPUBLISHED * (self.predicted_tps or 0.0) if self.published_tps is None else self.published_tps
        )
        return max(0.0, 1.0 - value / self.best_tps)

    @property
    def reason(self) -> str:
        """Reason for the regret, as far as it is known."""
        if not self.chosen:
            return "; ".join((*self.refused, *self.unknown))
        if self.published_tps is None:
            what = "the choice" if self.unproven else "the choice under such a load"
            return f"{what} is unpublished: {UNPUBLISHED:g} of {self.predicted_tps or 0.0:.3g} tok/s counts"
        return self.best_refused or "predicted faster than the best published"


class DecisionReport(Value):
    """All decisions, and their summary."""

    decisions: tuple[ScoredDecision, ...]
    unseen: tuple[ScoredDecision, ...] = ()
    """The same, made without what is published of the model's family; empty if not asked for."""

    @property
    def without_the_family(self) -> DecisionReport | None:
        """The report on `unseen`."""
        return DecisionReport(decisions=self.unseen) if self.unseen else None

    @property
    def regrets(self) -> tuple[float, ...]:
        """Regrets of the decisions with a choice, ascending."""
        return tuple(sorted(one.regret for one in self.decisions if one.regret is not None))

    @property
    def summary(self) -> dict[str, float | int | None]:
        """Quantiles of regret, the share of unpublished choices, and the number of decisions without a choice."""
        found, answered = self.regrets, [one for one in self.decisions if one.chosen]
        return {
            "decisions": len(self.decisions),
            "models": len({one.model for one in self.decisions}),
            "median_regret": round(median(found), 4) if found else None,
            "p90_regret": round(found[min(len(found) - 1, int(0.9 * len(found)))], 4) if found else None,
            "unproven": round(sum(one.unproven for one in answered) / len(answered), 4) if answered else None,
            "refused": sum(not one.chosen and bool(one.refused) for one in self.decisions),
            "unknown": sum(not one.chosen and not one.refused for one in self.decisions),
        }

    def json(self) -> str:  # type: ignore[override]  # pydantic's own `json` is deprecated; this is the public contract
        """The contract of `sparkfleet accuracy --decisions --json`."""
        held_out = self.without_the_family
        more = {} if held_out is None else {"family_left_out": held_out._content()}
        return json.dumps({"version": 1, **self._content(), **more}, indent=2)

    def _content(self) -> dict[str, object]:
        table = [
            one.model_dump(exclude={"best_refused"})
            | {"regret": one.regret, "unproven": one.unproven, "reason": one.reason}
            for one in self.decisions
        ]
        return {**self.summary, "table": table}

    def text(self) -> str:
        """The table for a terminal."""
        head = ("model", "Sparks", "objective", "best published", "chosen", "published", "regret")
        rows = [head, *(_cells(one) for one in self.decisions)]
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        own = "\n".join([*(line.rstrip() for line in lines), "", self.sentence()])
        held_out = self.without_the_family
        return own if held_out is None else f"{own}\n\n{UNSEEN}\n\n{held_out.text()}"

    def markdown(self) -> str:
        """The table for documentation, with a reason for every regret above 20 %."""
        head = "| model | Sparks | objective | best published | chosen | published for it | regret | reason |"
        lines = [head, "|---|---|---|---|---|---|---|---|"]
        for one in self.decisions:
            reason = one.reason if one.regret is None or one.regret > EXPLAINED_FROM else ""
            lines.append("| " + " | ".join((*_cells(one), reason)) + " |")
        own = "\n".join([self.sentence(), "", *lines])
        held_out = self.without_the_family
        return own if held_out is None else f"{own}\n\n{UNSEEN}\n\n{held_out.markdown()}"

    def sentence(self) -> str:
        """The summary in words."""
        if not self.decisions:
            return (
                "0 decisions: no model has three published configurations on the same number of Sparks and under one load."
                " `sparkfleet accuracy ROWS.csv` counts the rows that cannot be read, with the reason."
            )
        all_ = self.summary
        return (
            f"{all_['decisions']} decisions, {all_['models']} models: regret {percent(all_['median_regret'])} in the"
            f" median, {percent(all_['p90_regret'])} at the 90th percentile; {percent(all_['unproven'])} of the choices"
            f" are unpublished combinations; {all_['refused']} refused, {all_['unknown']} unknown by name."
        )


def percent(share: float | None) -> str:
    """A share in per cent for a table."""
    return "–" if share is None else f"{100 * share:.0f} %"


def _cells(one: ScoredDecision) -> tuple[str, ...]:
    asked = one.objective if one.concurrency == 1 else f"{one.objective}, {one.concurrency} requests"
    copies = f"{one.groups} × " if one.groups > 1 else ""
    chosen = f"{copies}{one.chosen}" if one.chosen else "refused" if one.refused else "unknown"
    unknown = "nobody" if one.unproven else "other loads" if one.ran else "–"
    published = unknown if one.published_tps is None else f"{one.published_tps:.4g}"
    published += " (a model of its shapes)" * one.by_sibling
    best = f"{one.best_tps:.4g}: {one.best}"
    return one.model, str(one.nodes), asked, best, chosen, published, percent(one.regret)
