"""The facts of a checkpoint that count, of all that were found, and the error if there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparkfleet.checkpoints.checkpoint import Checkpoint
from sparkfleet.checkpoints.remote_metadata import Outline
from sparkfleet.errors import FactError, SparkfleetError
from sparkfleet.fleet.planning.published_names import (
    BY_PATTERN,
    is_published,
    is_refuted,
    near,
    near_without_owner,
    with_pattern,
)
from sparkfleet.knowledge.models.gguf_formats import gguf_name
from sparkfleet.knowledge.models.known_models import config_name, hub_spelling, known_checkpoint
from sparkfleet.knowledge.models.published_ggufs import published_tags, tags_with_sizes
from sparkfleet.specs.gguf_names import SUFFIX
from sparkfleet.specs.model_name import base_name, model_name
from sparkfleet.staging.errors import ModelGated, ModelMiscased
from sparkfleet.staging.hub_outline import AtHub

Found = Checkpoint | FactError

NodeAnswer = tuple[str, Outline | SparkfleetError | None]
"""A node, and its outline of a checkpoint; None if it has nothing of it."""


def is_whole(found: Found | None) -> bool:
    """True for a checkpoint whose weights are known, not its config alone."""
    return isinstance(found, Checkpoint) and found.weights_known


def settled(
    model: str, here: Found | None, answers: Sequence[NodeAnswer], hub: AtHub, there: Sequence[Found] = ()
) -> Found:
    """The facts that count: weights before a config, this machine before a node, both before the Hub.

    A damaged checkpoint on this machine is an error if no node has a whole one. A damaged one on a node (a download may
    be under way) is an error only if the model is found neither at the Hub nor by name.
    """
    whole = next(filter(is_whole, (here, *there, hub.checkpoint)), None)
    if whole is not None:
        return whole
    config = next((one for one in there if isinstance(one, Checkpoint)), None)
    known = None if isinstance(here, FactError) else _known(model)
    miscased = _miscased(model, hub)
    if here is None and config is None and miscased is not None:
        return FactError(miscased.what, means=miscased.means, do=miscased.do)
    if here is None and config is None and hub.reason is not None and is_refuted(known, hub.reason):
        return _absent(model, known, answers, hub.reason)
    by_name = known if known is not None and is_published(known.id) else None
    # It is there, and cannot be planned: that counts more than what its name is like.
    at_the_hub = hub.reason if isinstance(hub.reason, FactError) else None
    found = here or by_name or config or hub.checkpoint or at_the_hub or known
    if isinstance(found, Checkpoint):
        return _with_reason(with_pattern(found) if found is known else found, hub)
    return found or next(iter(there), None) or _not_found(model, answers, hub)


def _miscased(model: str, hub: AtHub) -> ModelMiscased | None:
    """The error of a name in another letter case: the Hub's, or by the names that the knowledge has if it did not answer."""
    if isinstance(hub.reason, ModelMiscased):
        return hub.reason
    name, _, tag = model_name(model)
    published = hub_spelling(name) if hub.checkpoint is None else None
    if published is None or published == name or (gguf_name(model) is not None and not tag):
        return None  # the error for a GGUF without a tag has the Hub's spelling, too
    tagged = f":{tag}" if tag else ""
    return ModelMiscased.of(f"{name}{tagged}", f"{published}{tagged}", "the Hub")


def _with_reason(found: Checkpoint, hub: AtHub) -> Checkpoint:
    """A checkpoint whose sizes are estimates, with the reason why the Hub did not give them, if it was contacted."""
    if hub.reason is None or (found.origin and not found.origin.startswith(BY_PATTERN)):
        return found
    origin = f"{found.origin}; " if found.origin else "config alone, estimated: "
    remedy = (
        f" {hub.reason.do}" if isinstance(hub.reason, ModelGated) else ""
    )  # its weights cannot be fetched either
    return found.model_copy(update={"origin": f"{origin}{hub.reason.what}{remedy}"})


def _known(model: str) -> Checkpoint | None:
    """The facts by name; None for paths, and for a GGUF repository without a tag: the Hub lists its quantisations."""
    gguf = gguf_name(model)
    without_tag = gguf is not None and not gguf.tag
    return None if model.startswith("/") or without_tag else known_checkpoint(model)


# --- nothing was found ------------------------------------------------------------------------------------------------


def _not_found(model: str, answers: Sequence[NodeAnswer], hub: AtHub) -> FactError:
    looked = _words(["this machine", *(node for node, one in answers if one is None)])
    asked = () if hub.reason is None else (hub.reason.what,)
    means = (
        " ".join((*_silent(answers), *asked)) or "Its sizes are unknown, so nothing can be planned with it."
    )
    if model.startswith("/"):
        kind = "a file" if model.endswith(SUFFIX) else "a directory"
        return FactError(f"{model}: is not {kind} on {looked}.", means=means, do=_put(bool(answers)))
    name, revision, tag = model_name(model)
    if "/" not in name:
        like = near_without_owner(name)
        hint = f" Did you mean {' or '.join(like)}?" if like else ""
        return FactError(
            f"{name}: a model of the Hub has the name of its owner.",
            do=f"Give ORG/MODEL, or the absolute path of a directory with config.json.{hint}",
        )
    if gguf_name(model) is not None and not tag:
        return _without_tag(name, looked, hub)
    named = f"{name}:{tag}" if tag else name
    what = (
        f"{named} (revision {revision or 'main'}) is not in the Hub cache of {looked}, and not known by name."
    )
    remedy = f"{hub.reason.do} " if hub.reason is not None and hub.reason.do else ""
    return FactError(what, means=means, do=f"{remedy}{_bring(model, bool(answers))}")


def _without_tag(repository: str, looked: str, hub: AtHub) -> FactError:
    """The error for a GGUF repository whose files nobody could list."""
    known = published_tags(repository)
    unread = f"{hub.reason.what} " if hub.reason is not None else "The Hub was not contacted. "
    tags = f"Known are {tags_with_sizes(known)}" if known else "None of its tags is known"
    example = known[0].id if known else f"{repository}:Q4_K_M"
    return FactError(
        f"{repository}: the name has no tag, and its files are not on {looked}.",
        means=f"A GGUF repository has a model for each quantisation. {unread}{tags}; there may be others.",
        do=f"Name one, such as `{example}`; if the Hub answers, this error lists all of them.",
    )


def _absent(
    model: str, known: Checkpoint | None, answers: Sequence[NodeAnswer], reason: SparkfleetError
) -> FactError:
    """The error for a name that the Hub refuses: a typo, or a private model."""
    name = base_name(model)
    looked = _words(["this machine", *(node for node, one in answers if one is None)])
    like = near(name)
    hint = f"Did you mean {' or '.join(like)}? " if like else ""
    private = "If it is private: `hf auth login`, or set HF_TOKEN."
    offline = (
        "" if known is None else f" HF_HUB_OFFLINE=1 plans it by the pattern of {config_name(name)} alone."
    )
    means = " ".join((*_silent(answers), f"Its files are not on {looked} either."))
    return FactError(reason.what, means=means, do=f"{hint}{private}{offline}")


def _silent(answers: Sequence[NodeAnswer]) -> Iterator[str]:
    """Words for the nodes that could not be searched."""
    return (
        f"{node} could not be searched: {one.what.removeprefix(f'{node}: ').rstrip('.')}."
        for node, one in answers
        if isinstance(one, SparkfleetError)
    )


def _put(asked: bool) -> str:
    if asked:
        return "Give the directory with config.json on a node, or copy it there."
    return "Give the directory with config.json. Nodes are searched if there is an inventory and no --assume."


def _bring(model: str, asked: bool) -> str:
    name, revision, tag = model_name(model)
    like = near(name)
    also = f" Or did you mean {' or '.join(like)}?" if like else ""
    pull = f"Run `sparkfleet models pull {model}` for the nodes, or " if asked else "Run "
    download = f"hf download {name}{f' --revision {revision}' if revision else ''}"
    if tag:
        return f"{pull}`{download} --include '*{tag}*'` for this machine, or give the path of the GGUF file.{also}"
    return (
        f"{pull}`{download}` for this machine (config.json alone is enough for a plan), "
        f"or give the directory of the checkpoint.{also}"
    )


def _words(places: Sequence[str]) -> str:
    return places[0] if len(places) == 1 else f"{', '.join(places[:-1])} or {places[-1]}"
