"""Limits of API keys as options of the command line, changed and in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from sparkfleet.cli.times import time_ahead
from sparkfleet.errors import SpecError
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.specs.fields import quote

Requests = Annotated[
    int | None, typer.Option("--requests-per-minute", min=1, max=100_000, help="Requests in any minute.")
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-minute", min=1, max=1_000_000_000, help="Tokens of prompts and answers in any minute."
    ),
]
Concurrent = Annotated[int | None, typer.Option("--concurrent", min=1, max=100_000, help="Requests at once.")]
Batch = Annotated[bool, typer.Option("--batch", help="Its requests wait for those of other keys.")]
Expires = Annotated[
    str,
    typer.Option(
        "--expires", help="Refuse it after that: 12h, 30d, or a date such as 2027-01-31.", metavar="WHEN"
    ),
]

Admin = Annotated[
    bool,
    typer.Option(
        "--admin", help="It may stop, start and drain on the page, reads logs and sees every request there."
    ),
]


AdminOnly = Annotated[
    bool, typer.Option("--admin-only", help="As --admin, and its requests to models are refused.")
]


NEVER = "never"
"""The end of a key that has none."""
NewRequests = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=0, max=100_000, help="Requests in any minute; 0: no limit."),
]
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-minute",
        min=0,
        max=1_000_000_000,
        help="Tokens of prompts and answers in any minute; 0: no limit.",
    ),
]
NewConcurrent = Annotated[
    int | None, typer.Option("--concurrent", min=0, max=100_000, help="Requests at once; 0: no limit.")
]
NewBatch = Annotated[
    bool | None, typer.Option("--batch/--no-batch", help="Its requests wait for those of other keys, or not.")
]
NewExpires = Annotated[
    str,
    typer.Option(
        "--expires",
        help="Refuse it after that: 12h, 30d, a date such as 2027-01-31, or never.",
        metavar="WHEN",
    ),
]
NewAdmin = Annotated[bool | None, typer.Option("--admin/--no-admin", help="An admin's rights on the page.")]
NewAdminOnly = Annotated[
    bool | None,
    typer.Option(
        "--admin-only/--no-admin-only", help="As --admin, and requests to models are refused; or not refused."
    ),
]


def changes(
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    expires: str,
    *,
    batch: bool | None,
    admin: bool | None,
    admin_only: bool | None,
) -> dict[str, Any]:
    """The fields of a key's limits that options of `keys limit` change, and their new values."""
    numbers = {"requests_per_minute": requests, "tokens_per_minute": tokens, "concurrent": concurrent}
    given: dict[str, Any] = {field: value or None for field, value in numbers.items() if value is not None}
    if batch is not None:
        given["priority"] = "batch" if batch else "interactive"
    if expires:
        given["expires"] = None if expires == NEVER else expiry(expires)
    if admin is not None:
        given["admin"] = admin
    if admin_only is not None:
        given |= {"inference": not admin_only} | ({"admin": True} if admin_only else {})
    return given


def changed_limits(name: str, limits: KeyLimits, given: Mapping[str, Any]) -> KeyLimits:
    """The limits of a key with these fields changed. Raises SpecError if no right is left."""
    fields = {**limits.model_dump(), **given}
    if not (fields["admin"] or fields["inference"]):
        raise SpecError(
            f"{name} is for administration only: without an admin's rights it has none.",
            do=f"`sparkfleet keys limit {name} --no-admin --no-admin-only` makes it a key for models;"
            f" `sparkfleet keys revoke {name}` ends it.",
        )
    return KeyLimits.model_validate(fields)


def words_of(limits: KeyLimits) -> str:
    """The limits of a key in words; "" if it has none."""
    words = [
        f"{limits.requests_per_minute} requests/min" if limits.requests_per_minute else "",
        f"{limits.tokens_per_minute} tokens/min" if limits.tokens_per_minute else "",
        f"{limits.concurrent} at once" if limits.concurrent else "",
        "batch" if limits.priority == "batch" else "",
        ("admin" if limits.inference else "admin only") if limits.admin else "",
    ]
    if limits.expires is not None:
        words.append(f"{'expired' if limits.expires <= time.time() else 'until'} {day_of(limits.expires)}")
    return ", ".join(filter(None, words))


def limits_of(
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    batch: bool,
    expires: str,
    *,
    admin: bool,
    admin_only: bool,
) -> KeyLimits:
    """The limits of a new key. Raises SpecError for an expiry in the past."""
    return KeyLimits(
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        concurrent=concurrent,
        priority="batch" if batch else "interactive",
        expires=expiry(expires) if expires else None,
        admin=admin or admin_only,
        inference=not admin_only,
    )


def expiry(text: str) -> float:
    """The end of a key, Unix seconds. Raises SpecError for one in the past."""
    at = time_ahead(text)
    if at <= time.time():
        raise SpecError(
            f"{quote(text)} is in the past.",
            do="A key that nobody may use is revoked: `sparkfleet keys revoke NAME`.",
        )
    return at


def day_of(at: float | None) -> str:
    """A moment (Unix seconds) in local time; "never" for none."""
    return "never" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
