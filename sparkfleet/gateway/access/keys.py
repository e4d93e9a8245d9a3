"""API keys of clients, and the token that the gateway sends to the engines.

A key has 256 random bits, so one round of SHA-256 is enough to store it: it cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable

from sparkfleet.gateway.asgi import Headers
from sparkfleet.gateway.routing_table import FormerKey, KeyEntry, KeyLimits

PREFIX = "sk-sf-"
_KEY_BYTES = 32
_LONGEST_KEY = 512
_KEY_HEADERS = frozenset((b"authorization", b"x-api-key"))
_NO_LIMITS = KeyLimits()


def generate(name: str, limits: KeyLimits = _NO_LIMITS) -> tuple[str, KeyEntry]:
    """A new key: the plain text, to be shown once, and the entry to store."""
    plain = _plain()
    entry = KeyEntry(
        id=f"key-{secrets.token_hex(4)}", name=name, sha256=digest(plain.encode()), limits=limits
    )
    return plain, entry


def rotate(key: KeyEntry, until: float, now: float) -> tuple[str, KeyEntry]:
    """A new text for a key, to be shown once, and its entry.

    The old text is accepted `until` then, Unix seconds, and each one before it until its own end. If the old one is refused
    from `now` on, those are, too.
    """
    plain = _plain()
    former = FormerKey(sha256=key.sha256, until=until)
    earlier = tuple(one for one in key.formers if one.until > now) if until > now else ()
    return plain, key.model_copy(
        update={"sha256": digest(plain.encode()), "former": former, "earlier": earlier}
    )


def digest(key: bytes) -> str:
    """Hash under which a key is stored."""
    return hashlib.sha256(key).hexdigest()


def authenticate(headers: Headers, keys: Iterable[KeyEntry], now: float | None = None) -> KeyEntry | None:
    """The entry of the key that the request carries, or None; None also for a key that has expired.

    Reads `Authorization: Bearer` (OpenAI's clients) and `x-api-key` (Anthropic's). Every stored key is
    compared, so that the time taken does not show which one matched.
    """
    at = time.time() if now is None else now
    found = _named(headers, keys, at)
    return None if found is None or is_expired(found, at) else found


def expired_key(headers: Headers, keys: Iterable[KeyEntry]) -> KeyEntry | None:
    """The entry of a key that the request carries and that has expired, or None."""
    now = time.time()
    found = _named(headers, keys, now)
    return found if found is not None and is_expired(found, now) else None


def is_expired(key: KeyEntry, now: float) -> bool:
    """True if a key is refused for its age. `now`: Unix seconds."""
    return key.limits.expires is not None and now >= key.limits.expires


def may_infer(key: KeyEntry, now: float) -> bool:
    """True if requests with a key may reach a model. `now`: Unix seconds."""
    return key.limits.inference and not is_expired(key, now)


def _named(headers: Headers, keys: Iterable[KeyEntry], now: float) -> KeyEntry | None:
    known = tuple(keys)
    found: KeyEntry | None = None
    for presented in _presented(headers):
        mark = digest(presented)
        for entry in known:
            for sha256, until in entry.digests:
                if hmac.compare_digest(mark, sha256) and now < until:
                    found = entry
    return found


def _plain() -> str:
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def engine_token(secret: bytes, group: str) -> str:
    """The bearer token that one group's engine expects, so that clients cannot bypass the gateway.

    Args:
        secret: the fleet's own secret, at least 32 bytes, never shown.
        group: name of the group; a token leaked from one engine gives no access to another.
    """
    return hmac.new(secret, b"sparkfleet engine token\0" + group.encode(), hashlib.sha256).hexdigest()


def metrics_token(secret: bytes) -> str:
    """The bearer token that opens the metrics pages of the fleet's engines and nothing else, for Prometheus.

    Args:
        secret: see `engine_token`.
    """
    return hmac.new(secret, b"sparkfleet metrics token\0", hashlib.sha256).hexdigest()


def _presented(headers: Headers) -> list[bytes]:
    found = []
    for name, value in headers:
        if name not in _KEY_HEADERS or len(value) > _LONGEST_KEY:
            continue
        if name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"bearer":
                found.append(credentials.strip())
        else:
            found.append(value.strip())
    return found
