"""Request bodies of the controller's API and of node commands."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sparkfleet.controlplane.api.store_request import OnNode
from sparkfleet.controlplane.state.desired import Generation
from sparkfleet.controlplane.state.head_address import HeadAddress, HeadMove
from sparkfleet.controlplane.state.tables.bench_table import BenchResult
from sparkfleet.gateway.routing_table import KeyLimits
from sparkfleet.planner.types.plan import DeploymentPlan
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.fields import KeyName
from sparkfleet.specs.inventory import Inventory
from sparkfleet.values import Value

API_VERSION = 1
"""Version of the controller's API. It is raised whenever a request means something else to another release, or an answer is
read differently: a command and a controller of different versions change nothing. Releases before it have version 0."""

API_HEADER = "x-sparkfleet-api"
"""Header with the version in every request and every answer."""


REQUEST_HEADER = "x-sparkfleet-request"
"""Header with the id of a change, the same in each try: a try whose answer was lost may have been carried out."""


class ApplyRequest(Value):
    """A deployment and the plan that its owner confirmed."""

    spec: Deployment
    plan: DeploymentPlan
    who: str
    retry: bool = False
    """Start at the top of the ladders, even if nothing else would change."""
    base: int | None = None
    """Generation that the plan was made from; 0: there was none. None: not known, and not checked."""


class OpenDeployments(Value):
    """Deployments whose environment variables are to be sealed, so that their plan can be compared with what runs."""

    specs: tuple[Deployment, ...]


class KeyRequest(Value):
    """A name for a new key: formed like those of deployments, which name keys in `keys:`."""

    name: KeyName
    limits: KeyLimits = KeyLimits()


class BenchRequest(Value):
    """Speeds of a deployment to be kept."""

    results: Annotated[tuple[BenchResult, ...], Field(min_length=1, max_length=16)]


LONGEST_GRACE_S = 90 * 86400
"""Seconds for which the old text of a key may be accepted, at most."""


class RotateRequest(Value):
    """A new text for a key; the old one is accepted for `grace_s` seconds more."""

    grace_s: Annotated[float, Field(ge=0, le=LONGEST_GRACE_S)] = 0.0


class UpRequest(OnNode):
    """Input of `node_cli prepare` and `node_cli up` on the head: JSON on standard input."""

    inventory: Inventory
    who: str = ""
    """The person or program that requested it."""
    apply: tuple[ApplyRequest, ...] = ()
    """Deployments to apply at once, so that their engines start while Ray starts."""
    beside: bool = False
    """Start beside the Ray that this node has as part of another cluster: its head is being moved here."""
    term: int = 0
    """Lowest term of the head: see `HeadAddress.term`."""
    ray_port: int = 0
    """Port for its Ray at its first start: that of a lost head, which looks for it there. 0: a free one."""


class SecretsRequest(OnNode):
    """Input of `node_cli secrets`: a step of changing the internal secrets, see `node_daemon/secret_change.py`."""

    step: Literal["begin", "take", "show", "finish", "renew"]
    engine_tokens: str = Field(default="", repr=False)
    """For `take`: the secrets of the engines' tokens."""


class Prepared(Value):
    """Answer of `node_cli prepare`: everything that other nodes and clients need to join the head.

    It contains secrets, so it is sent over channels only and kept in 0600 files.
    """

    address: HeadAddress
    ray_token: str
    api_token: str
    engine_secret: str
    engine_tokens: str = ""
    """File of the secrets of the engines' tokens."""


class JoinRequest(OnNode):
    """Input of `node_cli join` on every other node."""

    node: str
    """The node's name."""
    host: str
    """Its address towards the other nodes."""
    ray: str
    """Address of the head's Ray, `address:port`."""
    head: str = ""
    """The head's name; "" in a role that an older release stored."""
    term: int = 0
    """The head's term."""
    ray_token: str
    engine_secret: str
    engine_tokens: str = ""
    joined: bool = False
    """True if Ray on it is part of the fleet and goes on; only its role and its secrets are written again."""

    @model_validator(mode="before")
    @classmethod
    def _of_an_older_release(cls, given: object) -> object:
        """Drops a field of earlier builds, whose Ray had TLS on some networks only: a node reads the role that it has."""
        return (
            {name: one for name, one in given.items() if name != "ray_tls"}
            if isinstance(given, dict)
            else given
        )


MoveStep = Literal["kept", "out", "in", "freeze", "give", "settle", "away", "cancel"]
"""See `node_daemon/head_move.py`."""


class MoveRequest(OnNode):
    """Input of `node_cli move`: a step of moving the head, see `node_daemon/head_move.py`. It may contain secrets."""

    step: MoveStep
    move: HeadMove
    up: UpRequest | None = None
    """For `in`: the new head. None if the fleet is down."""
    join: JoinRequest | None = None
    """For `away`. None if the fleet is down."""
    sha256: str = ""
    """For `in`: digest of the store's copy."""
    running: tuple[Generation, ...] | None = None
    """For `in`: generations that run on the nodes that are reached, if the old head is lost; else None."""
    term: int = 0
    """For `in`: the old head's."""
    certain: bool = True
    """For `cancel`: False if the new head has not answered and may have taken over."""
    ray_token: str = ""
    api_token: str = ""
    engine_secret: str = ""
    engine_tokens: str = ""


UpgradeStep = Literal["try", "begin", "freeze", "end", "thaw", "back", "settle"]


class UpgradeRequest(OnNode):
    """Input of `node_cli upgrade`: a step of an upgrade, see `node_daemon/upgrade_steps.py`."""

    step: UpgradeStep
    token: str
    """Of one run of `sparkfleet upgrade`: another one's steps are refused while it is under way."""
    who: str = ""
    """Origin of that command, `user@host`."""
    granted: bool = False
    """For `begin`: the head has allowed this upgrade, and what another one has left on this node is over."""


class Role(Value):
    """Role of a node in its fleet, kept in its state directory so that it resumes after a reboot."""

    python: str
    """The interpreter that resumes the role."""
    up: UpRequest | None = None
    """On the head."""
    join: JoinRequest | None = None
    """On any other node. Its secrets are in files of their own, not here."""
