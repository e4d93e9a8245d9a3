"""Documents of `/v1/models`."""

from __future__ import annotations

from typing import Any

from sparkfleet.gateway.access.allowed_paths import MODELS
from sparkfleet.gateway.errors.model_errors import unknown_model
from sparkfleet.gateway.routing_table import KeyEntry, ModelEntry, RoutingTable


def is_model_path(path: str) -> bool:
    """True for the list of models and for one of them."""
    return path == MODELS or path.startswith(MODELS + "/")


def model_document(path: str, table: RoutingTable, key: KeyEntry) -> dict[str, Any]:
    """The list of the models that a key may use, with their aliases, or the one that the path names.

    Raises:
        ApiError: 404, there is no such model for this key.
    """
    entries = table.visible_to(key)
    listed = [
        _document(entry, name) for entry in entries for name in (entry.name, *_shown_aliases(entry, table))
    ]
    document: dict[str, Any] = {"object": "list", "data": listed}
    wanted = path.removeprefix(MODELS).removeprefix("/")
    if wanted:
        entry = table.named(wanted, key)
        if entry is None or not entry.allows(key):
            raise unknown_model(wanted, [entry.name for entry in entries])
        document = _document(entry, wanted)
    return document


def _shown_aliases(entry: ModelEntry, table: RoutingTable) -> tuple[str, ...]:
    return tuple(name for name in entry.aliases if name not in table.models)


def _document(entry: ModelEntry, name: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": entry.created,
        "owned_by": "sparkfleet",
        "state": entry.state,
    }
    if name != entry.name:
        document["alias_of"] = entry.name
    if entry.context is not None:
        document["max_model_len"] = entry.context  # the name that vLLM and SGLang use
    return document
