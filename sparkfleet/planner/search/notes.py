"""Notes on a candidate, as plans show them: dangers, doubts, and what nobody has published. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sparkfleet.knowledge.engines.engine_flags import flag_faults
from sparkfleet.knowledge.models.speculators import draft_meant
from sparkfleet.knowledge.published.evidence import EvidenceLevel
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.knowledge.rules.rules import Require
from sparkfleet.perf.memory.demand import FLOOR
from sparkfleet.planner.capacity.proposal import DEFAULT_CONTEXT, Proposal, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import quant_of
from sparkfleet.planner.place.drafting import declared_heads, license_of_draft
from sparkfleet.planner.place.stacks import proves
from sparkfleet.planner.rules.judgement import RuleJudgement
from sparkfleet.planner.search.candidate_builder import StackedProposal
from sparkfleet.planner.search.objective import proof_of
from sparkfleet.planner.types.plan import ENGINE_LABELS, Candidate
from sparkfleet.units import GIB, gb, gib


def notes_of(
    stacked: StackedProposal, candidate: Candidate, sized: Sizing, verdict: RuleJudgement
) -> Iterator[str]:
    """The notes in their order: memory, rules, publications, drafts, disk, vision, flags."""
    case, proposal, _, _ = stacked
    yield from _at_the_edge(stacked, sized)
    yield from _of_rules(verdict, stacked)
    yield from _unpublished(stacked)
    if wide := _wide(case):
        yield wide
    if assumed := case.predictor.drafter(proposal.speculation).assumed:
        yield assumed
    if misspelt := _misspelt(case, proposal):
        yield misspelt
    own_head = proposal.speculation.method in ("mtp", "nextn") and proposal.speculation.draft is None
    if own_head and not declared_heads(case.predictor.checkpoint):
        yield "the config declares no MTP head: published runs of this model have one; known after the download"
    if noncommercial := _noncommercial(case, proposal):
        yield noncommercial
    if written := _written(stacked):
        yield written
    if "vision" in case.spec.needs and case.predictor.checkpoint.vision is None:
        yield "the weights may lack the vision tower: known only after the download"
    yield from _flag_faults(candidate, case.variant.engine_args)


def _at_the_edge(stacked: StackedProposal, sized: Sizing) -> Iterator[str]:
    """The warning on a candidate that is planned because nothing with more room is left."""
    if stacked.case.edge:
        needs = sized.needs
        yield (
            f"at the edge of the memory: {gib(needs.mid, exact=True)} are expected, {needs.low / GIB:.1f} at least,"
            f" and {stacked.room.at_most / GIB:.1f} leave the host {FLOOR / GIB:.0f};"
            " it may swap, or run out of memory at its start"
        )


def _wide(case: VariantCase) -> str:
    """The note on weights of 32 bits: more is read and copied than is held."""
    checkpoint = case.predictor.checkpoint
    if checkpoint.dtype != "float32" or checkpoint.loaded_bytes > 0.75 * checkpoint.bytes_on_disk:
        return ""
    return (
        f"stored in 32 bits and loaded in 16: {gb(checkpoint.bytes_on_disk)} on disk,"
        f" {gb(checkpoint.loaded_bytes)} in memory"
    )


def _of_rules(verdict: RuleJudgement, stacked: StackedProposal) -> Iterator[str]:
    for finding in dict.fromkeys((*verdict.uncured, *verdict.penalties, *verdict.warnings)):
        rule = finding.rule
        if finding.loses_prefix:
            continue  # has a line of its own
        dispute = f": {rule.dispute}" if rule.dispute else ""
        cure = (
            f"; nobody has published that {', '.join(rule.then.flags)} cures it"
            if isinstance(rule.then, Require)
            else ""
        )
        yield f"{rule.title} ({rule.id}){dispute}{cure}"
    for finding in verdict.doubts:
        serious = finding.rule.severity in ("garbage", "fails") and finding.rule.effect.do == "reject"
        if serious and not _seen_to_work(stacked):
            named = {"engine_version": "exact build"} if stacked.stack.version else {}
            unknown = ", ".join(named.get(name, name.replace("_", " ")) for name in finding.unknown)
            yield f"may apply ({unknown} not known): {finding.rule.title} ({finding.rule.id})"
    prompts = verdict.limits.prompt_tokens
    if prompts is not None and prompts < (stacked.case.variant.context or DEFAULT_CONTEXT):
        cause = next(one for one in verdict.required_by if one.limits.prompt_tokens == prompts)
        yield f"takes prompts of at most {prompts} tokens ({cause.rule.id})"


def _unpublished(stacked: StackedProposal) -> Iterator[str]:
    """The note on a candidate that nobody has published, with the nearest that somebody has."""
    case, proposal, stack, _ = stacked
    method, ranks = proposal.speculation.method, proposal.split.ranks
    drafting = "without drafts" if method == "none" else f"with {method.upper()}"
    where = f"on {ranks} node{'s' if ranks > 1 else ''}"
    found = proof_of(case, proposal)
    if found.level is EvidenceLevel.FORMAT:
        if not found.runs:
            yield f"nobody has published rates of this {where}, only gains or acceptance {drafting}"
            return
        formats = " and ".join(dict.fromkeys(one.format.upper() for one in found.nearest))
        yield f"nobody has published this format {drafting} {where}: others ran the family in {formats}"
    elif found.level > EvidenceLevel.FORMAT:
        yield f"nobody has published this: {ENGINE_LABELS[proposal.engine]} {drafting} {where} for models of this shape"
    elif proves(stack, method) is False:
        yield f"no published measurement of {method.upper()} on {stack.name}; there are some on other images"


def _written(stacked: StackedProposal) -> str:
    """The note on disk space that no download shows: a full disk ends the engine while it loads; "" if it needs none."""
    case, proposal, stack, _ = stacked
    tables = stack.disk_tables(case.predictor.checkpoint)
    if tables is None or not tables.written:
        return ""
    size = case.predictor.checkpoint.table_bytes / proposal.split.ranks
    return (
        f"each start writes {gb(size)} of n-gram tables into its container: so much has to be free on docker's disk"
        " (`docker info -f '{{.DockerRootDir}}'` has its directory)"
    )


def _misspelt(case: VariantCase, proposal: Proposal) -> str:
    """The warning on a draft that nobody has published under its name, with the one that is like it; "" on any other."""
    name = proposal.speculation.draft
    if name is None or name.startswith(("/", "builtin:")) or name in case.predictor.drafts:
        return ""
    meant = draft_meant(name)
    return (
        f"the draft {name} is not among the published ones; did you mean `draft: {meant}`?" if meant else ""
    )


def _noncommercial(case: VariantCase, proposal: Proposal) -> str:
    """The warning on a draft whose licence forbids commercial use; "" on any other."""
    name = proposal.speculation.draft
    given = license_of_draft(name, case.predictor.drafts) if name else ""
    if "-nc" not in given:
        return ""
    return f"the draft {name} is under {given}: not for commercial use; `license: open` excludes it"


def _seen_to_work(stacked: StackedProposal) -> bool:
    """True if the image served this quantisation and this method: what its unknown versions might mean is answered."""
    case, proposal, stack, _ = stacked
    known = stack.known
    proven = known is not None and known.status == "works" and quant_of(case) in known.quants
    return proven and proposal.split.ranks == 1 and proves(stack, proposal.speculation.method) is True


def _flag_faults(candidate: Candidate, given: tuple[str, ...]) -> Iterator[str]:
    """Flags and values of the deployment that the engine does not take, as far as its release is known.

    Those that rules and images add are not judged: they are known to be flags of that build.
    """
    for one in flag_faults(candidate.engine, candidate.engine_version, parse_flags(given)):
        yield f"{one.words(candidate.engine, candidate.engine_version)}: the engine may refuse to start"
