"""Paths that clients may use: those of OpenAI's and Anthropic's clients, and those that a deployment names. Pure.

An engine has more: vLLM's `/v1/load_lora_adapter` changes it, and the next release may add others. What is not listed is
not passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAKE = ("POST",)
_ID = r"[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*"
_ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    # OpenAI
    (r"/v1/(?:chat/)?completions", _MAKE),
    (r"/v1/responses", _MAKE),
    (rf"/v1/responses/{_ID}", ("GET", "DELETE")),
    (rf"/v1/responses/{_ID}/cancel", _MAKE),
    (rf"/v1/responses/{_ID}/input_items", ("GET",)),
    (r"/v1/(?:embeddings|moderations)", _MAKE),
    (r"/v1/audio/(?:transcriptions|translations|speech)", _MAKE),
    (r"/v1/images/(?:generations|edits|variations)", _MAKE),
    # Anthropic
    (r"/v1/messages(?:/count_tokens)?", _MAKE),
    # Cohere's and Jina's clients, and what vLLM and SGLang share beside
    (r"/v1/(?:rerank|score|classify|pooling|tokenize|detokenize)", _MAKE),
)
_PATTERNS = tuple((re.compile(pattern), methods) for pattern, methods in _ALLOWED)
_EVERY = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(path: str, named: Iterable[str] = ()) -> tuple[str, ...]:
    """Methods with which clients may use a path; () if it is not allowed.

    Args:
        named: paths that deployments name; one that ends in `/*` also covers all below it.
    """
    for pattern, methods in _PATTERNS:
        if pattern.fullmatch(path):
            return methods
    return _EVERY if is_named(path, named) else ()


def is_named(path: str, named: Iterable[str]) -> bool:
    """True if a path is among those that deployments name."""
    return any(_covers(one, path) for one in named)


def _covers(named: str, path: str) -> bool:
    return path.startswith(named[:-1]) if named.endswith("/*") else path == named
