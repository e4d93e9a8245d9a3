"""Capabilities of a group, from its plan: its weights and its engine's arguments. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.engines.tool_parsers import parsers_of
from sparkfleet.gateway.routing_table import ExternalAddress, GroupEntry, GroupSpeed
from sparkfleet.knowledge.rules.rule_context import parse_flags
from sparkfleet.perf.prediction import Prediction
from sparkfleet.planner.types.plan import Candidate
from sparkfleet.specs.deployment import Deployment

UNMEASURED: Mapping[str, float] = MappingProxyType({})


def group_entry(
    app: str, desired: Desired, replica: int, rung: int, measured: Mapping[str, float] = UNMEASURED
) -> GroupEntry:
    """A group's entry in the routing table, without its readiness.

    Args:
        replica: index of the group in its deployment.
        rung: index of its rung.
        measured: readings of its start, by name.
    """
    group = desired.plan.groups[replica]
    chosen = group.rung_at(rung)
    candidate = chosen.candidate
    if candidate.engine == "custom":
        # A custom candidate has 0 or 1 for values that its deployment does not declare: they are not facts.
        declared = desired.spec.resolved()[group.variant]
        return GroupEntry(app=app, context=declared.context, concurrency=declared.concurrency)
    return GroupEntry(
        app=app,
        vision=vision_of(candidate, group.vision),
        tools=tools_of(candidate, group.family),
        context=candidate.context,
        concurrency=candidate.concurrency,
        speed=speed_of(chosen.prediction),
        measured=measured_of(chosen.prediction, measured.get("decode_tps")),
        weights=weights_of(candidate, desired.groups[replica][1]),
    )


def external_entries(deployment: Deployment) -> tuple[GroupEntry, ...]:
    """Entries of the endpoints outside the fleet that a deployment lists."""
    return tuple(
        GroupEntry(
            app=f"external/{deployment.name}/{at}",
            vision=one.vision,
            tools=one.tools,
            context=one.context,
            concurrency=one.concurrency,
            external=ExternalAddress(url=one.url, model=one.model, key_file=one.key_file, when=one.when),
        )
        for at, one in enumerate(deployment.external)
    )


def weights_of(candidate: Candidate, generation: int) -> str:
    """Mark of a group's weights; "" if its engine returns no ids of tokens.

    Groups of one generation were started from the same files: a Hub model without a revision may be another one later.
    """
    if candidate.engine != "vllm":
        return ""
    kind = (candidate.quant, candidate.dtype, candidate.kv_dtype, candidate.engine_version)
    return " ".join((candidate.model, *kind, f"g{generation}"))


def measured_of(prediction: Prediction, decode_tps: float | None) -> float | None:
    """Measured over predicted decode speed of the short request of a group's start; None if either is not known.

    Its first token is no such evidence for prefill: with a short prompt it is overhead.
    """
    expected = prediction.check_decode_tps
    if not decode_tps or expected is None or expected.mid <= 0:
        return None
    return decode_tps / expected.mid


def speed_of(prediction: Prediction) -> GroupSpeed | None:
    """The speed of a group by its plan; None if the plan has none."""
    prefill, alone = prediction.prefill_tps, prediction.decode_tps_per_request
    if prefill is None or alone is None or prefill.mid <= 0 or alone.mid <= 0:
        return None
    together = prediction.decode_tps_aggregate
    return GroupSpeed(
        prefill_tps=prefill.mid,
        alone_tps=alone.mid,
        together_tps=together.mid if together is not None else 0.0,
        concurrency=prediction.concurrency or 1,
    )


def vision_of(candidate: Candidate, tower: bool | None) -> bool | None:
    """True if a group takes images. `tower`: true if its weights have a vision tower.

    The arguments may leave the tower out. TensorRT-LLM serves the towers of a few models only, so a tower proves nothing
    there. llama.cpp's is a file of its own, which may be left out, or be for sound alone.
    """
    flags = parse_flags(candidate.engine_args)
    if candidate.gguf is not None and (not candidate.gguf.mmproj or "--no-mmproj" in flags):
        return False
    if (
        tower is False
        or "--language-model-only" in flags
        or _no_images(flags.get("--limit-mm-per-prompt", ""))
    ):
        return False
    return None if candidate.engine == "trtllm" else tower


def tools_of(candidate: Candidate, family: str) -> bool | None:
    """True if a group parses its model's tool calls. `family`: the `model_type`, "" if it is not known.

    Without a parser vLLM refuses a request with tools, except for models that it parses in other ways. SGLang passes the
    calls on as text (sgl-project/sglang#10184), which some clients read; with TensorRT-LLM it depends on the model: unknown.
    llama.cpp derives its parser from the chat template: unknown, too.
    """
    flags = parse_flags(candidate.engine_args)
    if parsers_of(candidate.model, candidate.engine, candidate.engine_version).tools:
        return True
    match candidate.engine:
        case "vllm":
            named = "--tool-call-parser" in flags and "--enable-auto-tool-choice" in flags
            return named or (None if _reads_itself(family, flags.get("--tokenizer-mode", "")) else False)
        case "sglang":
            return "--tool-call-parser" in flags or None
        case "trtllm":
            return "--tool-parser" in flags or None
        case "llama.cpp":
            # Its parser follows from the chat template: one without tools leaves them out of the prompt, without an error.
            return False if "--no-jinja" in flags or "--skip-chat-parsing" in flags else None
        case _:
            return None


def _no_images(limit: str) -> bool:
    """True if vLLM's limit of media per prompt, JSON, allows no image."""
    try:
        given = json.loads(limit or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and given.get("image") == 0


def _reads_itself(family: str, tokenizer_mode: str) -> bool:
    """True if vLLM may parse calls without a parser: by Mistral's own tokenizer (mistral, mixtral, pixtral), or by Harmony.

    As of 0.32, `renderers/online_renderer.py`. True for an unknown family.
    """
    return not family or family == "gpt_oss" or "tral" in family or tokenizer_mode == "mistral"
