"""Errors of requests for a model: unknown, not ready, too busy, or unable to do what is requested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparkfleet.gateway.errors.api_error import PROMPT_TOO_LONG, ApiError, later, shortened
from sparkfleet.gateway.request.requirements import Ability
from sparkfleet.gateway.routing_table import GroupEntry, ModelEntry

_MOST_NAMES = 20


class _Lack(NamedTuple):
    """Text of the error for a missing capability."""

    noun: str
    means: str
    do: str


_LACKS: dict[Ability, _Lack] = {
    "vision": _Lack(
        "images or video",
        "None of its groups takes images: their weights have no vision tower, or it is switched off.",
        "Remove them, or use a model with vision.",
    ),
    "tools": _Lack(
        "tools",
        "None of its groups parses tool calls: their engines have no parser for this model.",
        'Remove "tools", or set a parser in the deployment ("--tool-call-parser" in "engine_args").',
    ),
}


def unknown_model(model: str, known: Iterable[str]) -> ApiError:
    """404: no deployment of that name. `known` are the names that the caller may use."""
    names = list(known)
    listed = ", ".join(names[:_MOST_NAMES]) + (" …" if len(names) > _MOST_NAMES else "")
    return ApiError(
        f'There is no model "{shortened(model)}".',
        do=f"Available: {listed}." if names else "No model is deployed: `sparkfleet apply FILE` serves one.",
        status=404,
        code="model_not_found",
        kind="unknown_model",
        param="model",
    )


def not_ready(entry: ModelEntry, now: float) -> ApiError:
    """503: the deployment exists, but none of its groups is ready. `now`: Unix seconds."""
    state = "has failed to start" if entry.state == "failed" else f"is {entry.state}"
    return _model_not_ready(
        entry, now, f'The model "{entry.name}" {state}' + (f": {entry.detail}." if entry.detail else ".")
    )


def _model_not_ready(entry: ModelEntry, now: float, what: str) -> ApiError:
    return later(what, entry.retry_s(now), code="model_not_ready", kind="not_ready")


def unable(entry: ModelEntry, lacking: Sequence[Ability]) -> ApiError:
    """400: no group of the deployment, ready or not, has these capabilities. `lacking` is not empty."""
    nouns = _nouns(lacking)
    if all(any(getattr(group, one) is not False for group in entry.groups) for one in lacking):
        what = f'The model "{entry.name}" does not take {nouns} in one request.'
        means, do = "No single group supports both.", "Send two requests."
    else:
        what = f'This request has {nouns}, which the model "{entry.name}" does not take.'
        means, do = (" ".join(getattr(_LACKS[one], name) for one in lacking) for name in ("means", "do"))
    return ApiError(
        what,
        means=means,
        do=do,
        status=400,
        code="unsupported_by_model",
        kind="unsupported",
        param="tools" if "tools" in lacking else None,
    )


def media_refused(entry: ModelEntry, url: str, host: str) -> ApiError:
    """400: an image, video or sound is named by a URL that the deployment does not allow. `host`: "" if it has none."""
    allowed = f"`media_domains` of its deployment lists {', '.join(entry.media_domains) or 'no host'}"
    add = f", or add {host} to `media_domains` of the deployment and apply it" if host else ""
    return ApiError(
        f'The model "{entry.name}" does not fetch {shortened(url)}: {allowed}.',
        means="An engine that fetches any URL reaches hosts and files for its clients that they must not reach.",
        do=f"Send the content as a `data:` URL{add}.",
        status=400,
        code="media_not_allowed",
        kind="unsupported",
    )


def none_ready_for(entry: ModelEntry, needs: Iterable[Ability], now: float) -> ApiError:
    """503: the groups with these capabilities are not ready; others of the deployment are. `needs` is not empty."""
    return _model_not_ready(
        entry, now, f'The groups of "{entry.name}" that take {_nouns(needs)} are not ready.'
    )


def none_ready_so_large(entry: ModelEntry, larger: GroupEntry, now: float) -> ApiError:
    """503: the prompt is too long for the groups that are ready, and `larger` is not."""
    context = f"with a context of {larger.context} tokens" if larger.context else "whose context is not known"
    return _model_not_ready(
        entry,
        now,
        f'The prompt is too long for the groups of "{entry.name}" that are ready; {larger.name}, {context}, is not.',
    )


def no_engine(entry: ModelEntry, now: float) -> ApiError:
    """503: the deployment should serve, but no group takes the request."""
    return later(
        f'No engine of "{entry.name}" takes requests at the moment.', entry.retry_s(now), code="no_engine"
    )


def engine_lost(entry: ModelEntry, now: float) -> ApiError:
    """503: every engine that got the request was lost before its first byte."""
    return later(
        f'The engine of "{entry.name}" failed before it answered. One that has ended is replaced; `sparkfleet status` has'
        " its state.",
        entry.retry_s(now),
        code="engine_lost",
    )


def queue_full(entry: ModelEntry, waiting: int, seconds: int) -> ApiError:
    """503: as many requests wait for the model as may. `seconds`: when they have been served, by their forecasts."""
    return later(
        f'{waiting} requests wait for "{entry.name}", as many as may.',
        seconds,
        code="queue_full",
        kind="queue",
    )


def waited_too_long(entry: ModelEntry, waited_s: float, seconds: int) -> ApiError:
    """503: no slot was free within the deadline of the queue."""
    return later(
        f'No group of "{entry.name}" had room within {waited_s:g} s.',
        seconds,
        code="queue_timeout",
        kind="queue",
    )


def too_long(entry: ModelEntry, least: int, largest: int, where: str) -> ApiError:
    """400: the prompt is certainly longer than every context. `where`: the group with the largest one.

    The first sentence is what Anthropic's clients look for (`PROMPT_TOO_LONG`), the second what OpenAI's do (OpenCode,
    LiteLLM).
    """
    return ApiError(
        f"{PROMPT_TOO_LONG}: it has at least {least} tokens. This model's maximum context length is {largest} tokens"
        f' ("{entry.name}" on {where}).',
        do="Send a shorter prompt.",
        status=400,
        code="context_length_exceeded",
        kind="unsupported",
        param="messages",
    )


def largest_context(entry: ModelEntry) -> str:
    """The largest context of a deployment and its group, in a sentence; "" if none is known."""
    known = [one for one in (*entry.groups, *entry.external) if one.context is not None]
    if not known:
        return ""
    largest = max(known, key=lambda one: one.context or 0)
    return f'The largest context of "{entry.name}" is {largest.context} tokens, on {largest.name}.'


def holder_not_ready(entry: ModelEntry, group: str, now: float) -> ApiError:
    """503: the group that has the stored response is not ready."""
    return _model_not_ready(
        entry, now, f'The group of "{entry.name}" that has the stored response, {group}, is not ready.'
    )


_TASKS: dict[str, str] = {
    "embeddings": "makes no embeddings",
    "moderations": "judges no texts",
    "transcriptions": "transcribes no speech",
    "translations": "translates no speech",
    "speech": "makes no speech",
    "generations": "makes no images",
    "edits": "edits no images",
    "variations": "makes no images",
    "rerank": "ranks no documents",
    "score": "compares no texts",
    "classify": "classifies no texts",
    "pooling": "makes no vectors",
    "completions": "completes no text",
    "messages": "holds no conversation",
    "responses": "holds no conversation",
}
"""A model that lacks a path, by the last word of the path."""


def not_its_task(model: str, path: str) -> ApiError:
    """404: the model's engine has no such path, because the model is of another kind."""
    task = _TASKS.get(path.rpartition("/")[2], "does not do that")
    return ApiError(
        f'The model "{model}" {task}: its engine does not serve {shortened(path)}.',
        do="GET /v1/models lists the models of this endpoint; the path needs one that is made for it.",
        status=404,
        code="unsupported_by_model",
        kind="unsupported",
    )


def _nouns(abilities: Iterable[Ability]) -> str:
    return " and ".join(_LACKS[one].noun for one in abilities)
