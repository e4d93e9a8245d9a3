"""Age of each part of the knowledge, and what is newer upstream as far as this machine can see."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Literal

from packaging.version import Version

from sparkfleet.errors import SparkfleetError
from sparkfleet.fleet.knowledge.upstream_news import (
    ENGINES,
    WAIT_S,
    HubNews,
    NotReached,
    hub_news,
    index_url,
    newest_known,
    newest_release,
)
from sparkfleet.knowledge.engines.engine_models import ENGINE_MODELS
from sparkfleet.knowledge.engines.images import IMAGES
from sparkfleet.knowledge.models.published_checkpoints import load_published
from sparkfleet.knowledge.models.speculators import SPECULATORS
from sparkfleet.knowledge.parts import KnowledgePart, knowledge_parts
from sparkfleet.values import Value

SHOWN = 4
"""Names of repositories in one line."""


class PartStatus(Value):
    """One part of the knowledge, with its age."""

    part: KnowledgePart
    age_days: int | None
    old: bool
    upstream: Literal["newer", "current", "not reached", "not asked"]
    """`not asked` of parts that nothing upstream can be compared with, and without a network by choice."""
    news: tuple[str, ...] = ()
    """Newer releases, or the reason why they are not known."""


def knowledge_status(
    today: date, *, offline: bool = False, index: str = "", hub: str = "", wait_s: float = WAIT_S
) -> tuple[PartStatus, ...]:
    """The state of every part, in the order of the parts.

    Args:
        today: against which ages are counted.
        offline: contact nobody.
        index: address of a simple package index; "": pip's own.
        hub: address of the Hub; "": HF_ENDPOINT, or the public one.
        wait_s: longest wait for a connection and for the next bytes.

    Raises:
        SpecError: a file of the knowledge was edited and is no longer valid.
    """
    parts = knowledge_parts()
    if offline:
        return tuple(_status(part, today) for part in parts)
    releases = _releases(index or index_url(), wait_s)
    news = {
        "images": _behind(releases, {name: _image_versions(name) for name in ENGINES}, "newest image known"),
        "architectures": _behind(
            releases, {name: [*_read(name)] for name in ENGINES}, "newest list of models that was read"
        ),
        **_repositories(hub, wait_s),
    }
    return tuple(_status(part, today, news.get(part.id)) for part in parts)


News = tuple[Literal["newer", "current", "not reached"], tuple[str, ...]]


def _status(part: KnowledgePart, today: date, news: News | None = None) -> PartStatus:
    state, lines = news or ("not asked", ())
    return PartStatus(
        part=part, age_days=part.age_days(today), old=part.is_old(today), upstream=state, news=lines
    )


def _releases(index: str, wait_s: float) -> dict[str, str | NotReached]:
    found: dict[str, str | NotReached] = {}
    for engine, (_, package, candidates) in ENGINES.items():
        try:
            found[engine] = newest_release(index, package, candidates=candidates, wait_s=wait_s)
        except NotReached as error:
            found[engine] = error
    return found


def _behind(releases: dict[str, str | NotReached], known: dict[str, Sequence[str | None]], what: str) -> News:
    """The releases that are newer than what is known, engine by engine; of an engine without any entry there is no news."""
    lines, failures = [], []
    for engine, release in releases.items():
        name, newest = ENGINES[engine][0], newest_known(known[engine])
        if isinstance(release, NotReached):
            failures.append(f"upstream not reached: {name}: {release}")
        elif known[engine] and (newest is None or newest < Version(release)):
            lines.append(f"{name} {release} is out; {what}: {newest or 'none'}")
    if lines:
        return "newer", (*lines, *failures)
    return ("not reached" if failures else "current"), tuple(failures)


def _image_versions(engine: str) -> list[str | None]:
    return [image.engine_version for image in IMAGES.content.images if image.engine == engine]


def _read(engine: str) -> tuple[str, ...]:
    return next((read for name, read in ENGINE_MODELS.content.read.items() if name == engine), ())


def _repositories(hub: str, wait_s: float) -> dict[str, News]:
    """News of checkpoints and of drafts: one look at the Hub for both."""
    asked = {
        "checkpoints": {one.id: one.date for one in load_published().values()},
        "speculators": {
            one.draft: one.date for one in SPECULATORS.content.speculators if one.draft is not None
        },
    }
    found: dict[str, News] = {}
    for part, entries in asked.items():
        try:
            found[part] = _changed(hub_news(entries, endpoint=hub, wait_s=wait_s))
        except (NotReached, SparkfleetError) as error:
            reason = error.what if isinstance(error, SparkfleetError) else str(error)
            return dict.fromkeys(asked, ("not reached", (f"upstream not reached: {reason}",))) | found
    return found


def _changed(news: HubNews) -> News:
    lines = []
    if news.changed:
        lines.append(f"{len(news.changed)} changed on the Hub since they were read: {_named(news.changed)}")
    if news.missing:
        lines.append(f"{len(news.missing)} not on the Hub, or not without a token: {_named(news.missing)}")
    if news.unanswered:
        lines.append(f"upstream not reached: {news.unanswered} repositories")
    if news.changed or news.missing:
        return "newer", tuple(lines)
    return ("not reached" if news.unanswered else "current"), tuple(lines)


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
