"""Paths that clients may use: those of OpenAI's and Anthropic's clients, and those that a deployment names. Pure.

An engine has more: vLLM's `/v1/load_lora_adapter` changes it, and the next release may add others. What is not listed is
not passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

MODELS = "/v1/models"
"""Path that the gateway answers itself."""
POSTED = frozenset(
    {
        # OpenAI
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/moderations",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/images/variations",
        # Anthropic
        "/v1/messages",
        "/v1/messages/count_tokens",
        # Cohere's and Jina's clients, and what vLLM and SGLang share beside
        "/v1/rerank",
        "/v1/score",
        "/v1/classify",
        "/v1/pooling",
        "/v1/tokenize",
        "/v1/detokenize",
    }
)
"""Paths of requests to models. Each is a value of the label `path` in metrics."""
LONGEST_MEANT = 128
"""Characters of a path that are compared with known ones: comparing is quadratic."""
_MAKE = ("POST",)
_ID = r"[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*"
_WITH_ID: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(rf"/v1/responses/{_ID}"), ("GET", "DELETE")),
    (re.compile(rf"/v1/responses/{_ID}/cancel"), _MAKE),
    (re.compile(rf"/v1/responses/{_ID}/input_items"), ("GET",)),
)
_EVERY = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(path: str, named: Iterable[str] = ()) -> tuple[str, ...]:
    """Methods with which clients may use a path; () if it is not allowed.

    Args:
        named: paths that deployments name; one that ends in `/*` also covers all below it.
    """
    if path in POSTED:
        return _MAKE
    for pattern, methods in _WITH_ID:
        if pattern.fullmatch(path):
            return methods
    return _EVERY if is_named(path, named) else ()


def meant_path(path: str) -> str:
    """The path of the API that a client with a wrong base URL, or a person with a typo, meant; "" if none is near."""
    if len(path) > LONGEST_MEANT:
        return ""
    inside = re.sub(r"^(?:/+v1(?=/|$))*/*", "/v1/", path).rstrip("/")
    behind = "/v1/" + path.rpartition("/v1/")[2].rstrip("/")  # as for /openai/v1/chat/completions
    for one in (inside, behind):
        if one == MODELS or allowed_methods(one):
            return one
    return next(iter(get_close_matches(inside, (*sorted(POSTED), MODELS), n=1, cutoff=0.85)), "")


def path_label(path: str) -> str:
    """The path as a label of metrics: itself if it is a known one, else "other". A client cannot make new ones."""
    return path if path in POSTED or path == MODELS else "other"


def is_named(path: str, named: Iterable[str]) -> bool:
    """True if a path is among those that deployments name."""
    return any(_covers(one, path) for one in named)


def _covers(named: str, path: str) -> bool:
    return path.startswith(named[:-1]) if named.endswith("/*") else path == named
