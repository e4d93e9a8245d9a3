"""A proposal on one stack: the candidate that it makes, and the situation that it is held against rules in. Pure."""

from __future__ import annotations

from typing import NamedTuple

from sparkfleet.knowledge.rules.rule_context import RuleContext
from sparkfleet.perf.memory.demand import MemoryBudget
from sparkfleet.perf.prediction import Speculation, Split
from sparkfleet.planner.capacity.proposal import Proposal, Sizing, VariantCase
from sparkfleet.planner.capacity.sizing import LEAST_CONTEXT, fraction_of, quant_of, settings_of
from sparkfleet.planner.capacity.weight_reading import reads_files
from sparkfleet.planner.place.drafting import depth_on
from sparkfleet.planner.place.gguf_drafts import gguf_draft
from sparkfleet.planner.place.stacks import Stack
from sparkfleet.planner.rules.judgement import merge_flags
from sparkfleet.planner.rules.rule_facts import checkpoint_situation, image_situation, situation_of
from sparkfleet.planner.types.plan import Candidate, GroupShape


class StackedProposal(NamedTuple):
    """A proposal on one stack, on nodes with so much room."""

    case: VariantCase
    proposal: Proposal
    stack: Stack
    room: MemoryBudget


def candidate_of(stacked: StackedProposal, sized: Sizing) -> Candidate:
    """The candidate as it is before rules have changed it."""
    case, proposal, stack, room = stacked
    variant, split = case.variant, proposal.split
    nodes = proposal.pool.nodes[: split.ranks]
    tables = stack.disk_tables(case.predictor.checkpoint)
    candidate = Candidate(
        model=variant.model,
        shape=GroupShape(nodes=nodes, **split._asdict()),
        engine=stack.engine,
        engine_version=stack.version,
        runtime=stack.runtime,
        python=stack.python,
        image=stack.image,
        quant=quant_of(case),
        speculation=depth_on(proposal.speculation, stack, case.load(proposal.split.ranks)),
        context=sized.context,
        concurrency=sized.concurrency,
        kv_dtype=sized.kv_dtype,
        memory_fraction=fraction_of(case, proposal, stack.engine, sized),
        engine_args=merge_flags(variant.engine_args, tables.args if tables else ())[0],
        env=tuple(sorted({**dict(tables.env if tables else ()), **variant.env}.items())),
        kv_disk_bytes=variant.kv_disk_bytes,
        kv_staging_bytes=int(sized.staging) or None,
        media_domains=variant.media_domains,
        gguf=case.predictor.checkpoint.gguf,
        gguf_draft=gguf_draft(proposal.speculation, case.predictor.drafts)
        if stack.engine == "llama.cpp"
        else None,
        trust_remote_code=variant.trust_remote_code,
    )
    # Tables that stay on the disk are mapped.
    reads = tables is None and reads_files(candidate, case.predictor.checkpoint.largest_file, sized, room)
    return candidate.model_copy(update={"mmap": False}) if reads else candidate


def known_of(stacked: StackedProposal) -> RuleContext:
    """Facts shared by every candidate of a proposal: its weights, its image, its nodes, and the deployment's needs."""
    case, proposal, stack, _ = stacked
    site, split = proposal.pool.site, proposal.split
    shape = GroupShape(nodes=proposal.pool.nodes[: split.ranks], **split._asdict())
    facts = {
        **_known(checkpoint_situation(case.predictor.checkpoint, shape)),
        **_known(image_situation(stack.image or "")),
        "topology": site.topology,
        "link": site.link_id,
        "driver": site.driver or None,
        "kernel_os": site.kernel or None,
        "needs": case.spec.needs,
        "content": case.spec.content,
        "license_policy": case.spec.license,
        "fits_one_node": _fits_one(case, proposal, stack),
    }
    return RuleContext.model_validate({name: value for name, value in facts.items() if value is not None})


def situation_with(candidate: Candidate, known: RuleContext, batch_tokens: int) -> RuleContext:
    """Shared facts, completed with those of the candidate, or with the planned values if it has none."""
    found = situation_of(candidate, known)
    changes: dict[str, object] = {}
    if found.kv_dtype in ("auto", None):
        changes["kv_dtype"] = candidate.kv_dtype
    if found.batch_tokens is None:
        changes["batch_tokens"] = float(batch_tokens)
    if candidate.speculation.beam_tokens is not None:
        spelled = f"--speculative-num-draft-tokens={candidate.speculation.beam_tokens}"
        changes["flags"] = (*candidate.engine_args, spelled)
    return found.model_copy(update=changes) if changes else found


def situation_elsewhere(case: VariantCase, candidate: Candidate) -> RuleContext:
    """Facts of a candidate, its weights and its image; nothing is known of its nodes."""
    known = {
        **_known(checkpoint_situation(case.predictor.checkpoint, candidate.shape)),
        **_known(image_situation(candidate.image or "")),
    }
    return situation_of(candidate, RuleContext.model_validate(known))


def _known(situation: RuleContext) -> dict[str, object]:
    return {name: value for name, value in situation if value is not None}


def _fits_one(case: VariantCase, proposal: Proposal, stack: Stack) -> bool:
    settings = settings_of(case, proposal, stack)._replace(speculation=Speculation())
    needs, _ = case.predictor.memory(Split(), settings, LEAST_CONTEXT, 1)
    return needs.mid <= 0.85 * proposal.pool.site.memory_total


def name_of(candidate: Candidate) -> str:
    """A candidate as rejections name it: "TP=1 · vLLM 0.27.1 · FP8 · MTP k=3"."""
    return f"{candidate.shape.split} · {candidate.how}"
