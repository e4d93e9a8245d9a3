"""Settings of staging beside the needs."""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import Field

from sparkfleet.staging.agent.transfer import RESERVE_BYTES, STREAMS
from sparkfleet.staging.manifest import StagingItem
from sparkfleet.values import Value

HubUse = Literal["if-missing", "always", "never"]


class Need(Value):
    """A model or an image that nodes need.

    Attributes:
        wanted: the model or image.
        nodes: the nodes that need it.
        hub: use of the Hub, or of an image's registry: if no node has it, always (for the present commit of the revision
            or digest of the tag), or never.
    """

    wanted: StagingItem
    nodes: tuple[str, ...]
    hub: HubUse = "if-missing"

    @classmethod
    def model(cls, model: str, nodes: tuple[str, ...], revision: str | None = None) -> Need:
        """A model as a deployment names it. Raises FactError if the name is invalid."""
        return cls(wanted=StagingItem.model(model, revision), nodes=nodes)

    @classmethod
    def image(cls, image: str, nodes: tuple[str, ...], hub: HubUse = "if-missing") -> Need:
        """A container image by its reference; staging requires the digest."""
        return cls(wanted=StagingItem(kind="image", name=image), nodes=nodes, hub=hub)


class StagingSettings(Value):
    """Settings of staging.

    Attributes:
        python: by node, the Python of its sparkfleet environment; by default the one that runs this.
        cache: by node, its Hub cache; by default that of the user that sparkfleet logs in as.
        endpoint: address of the Hub; "": HF_ENDPOINT of the node.
        token: access token of the Hub; "": the node's own. It is sent on stdin, and never printed.
        streams: concurrent files.
        reserve_bytes: bytes that stay free on every disk.
        tool: docker or podman; "": whichever a node has.
    """

    python: dict[str, str] = Field(default_factory=dict)
    cache: dict[str, str] = Field(default_factory=dict)
    endpoint: str = ""
    token: str = Field(default="", repr=False)
    streams: int = STREAMS
    reserve_bytes: int = RESERVE_BYTES
    tool: str = ""

    def python_on(self, node: str) -> str:
        """The Python of a node's sparkfleet environment."""
        return self.python.get(node, sys.executable)

    def cache_on(self, node: str) -> str:
        """The Hub's cache of a node, or "" for its user's."""
        return self.cache.get(node, "")


class Staged(Value):
    """Result of staging one need.

    Attributes:
        wanted: the model or image.
        commit: commit of a Hub model's revision.
        paths: by node, the directory to load from; for an image, the name to run it by.
        moved_bytes: bytes moved over the network.
    """

    wanted: StagingItem
    commit: str = ""
    paths: dict[str, str]
    moved_bytes: int = 0
