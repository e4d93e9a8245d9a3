"""Configures the rails of every node as planned, and reverts all nodes unless all of them work.

A helper that runs as root (`rails_helper.py`) changes each node. The helper leaves a process behind
that reverts the change unless it is confirmed in time, through a connection that was opened after the change: a
node that can no longer be reached recovers by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.resources import files

from pydantic import ValidationError

from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.fabric.netplan import FabricPlan
from sparkfleet.hostfacts.fact import json_of, text
from sparkfleet.remote.batch import run_batch
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.specs.fields import USER_NAME
from sparkfleet.values import Value

HELPER_PATH = "/usr/local/sbin/sparkfleet-rails"
ROLLBACK_S = 90
"""Seconds until an unconfirmed change is reverted. `netplan apply` takes some, and links some more to come back."""
APPLY_S = 120.0
SETTLE_TRIES = 5
SETTLE_PAUSE_S = 2.0
"""Seconds between two tries: without its link a rail has no route, and a ping ends at once."""
HELPER = (files("sparkfleet.fabric") / "rails_helper.py").read_bytes()

_USER = re.compile(USER_NAME)
_HOME = re.compile(r"(/\w[\w.@ -]{0,63}){1,8}")

Reopen = Callable[[str], Awaitable[Channel]]
"""Opens a new connection to the node of that name."""


class _Answer(Value):
    """The helper's view of its node."""

    backend: str
    own: str
    """The netplan file that the helper has written; "" if there is none."""
    others: dict[str, tuple[str, ...]]
    """Other netplan files that configure a netdev on which rails can be: path to netdevs."""
    loose: tuple[str, ...] = ()
    """Netdevs on which rails can be, and that answer ARP for addresses of other netdevs."""
    firewall: str = ""
    """The table of `fabric firewall` as it is loaded; "" if there is none."""
    nft: bool = False
    """True if nftables are installed."""


class _Shown(_Answer):
    """The answer to `show`."""

    version: str


class Helper(_Answer):
    """Starts the helper on one node and keeps its answer."""

    node: str
    argv: tuple[str, ...]


class FabricOutcome(Value):
    """Outcome of a change."""

    kept: bool
    problems: tuple[str, ...]
    """Reasons for which it was reverted, a sentence each."""
    checked: bool = True
    """False if a node refused the change or was not reached after it, so that nothing was checked."""
    confirmed: tuple[str, ...] = ()
    """Nodes that have kept the change."""
    unconfirmed: tuple[str, ...] = ()
    """Nodes without an answer to the confirmation, if others have kept the change: each reverts it by itself, unless the
    confirmation has arrived."""


class NotPermitted(NodeError):
    """sparkfleet has no permission to change the rails of a node. `do` has the commands that give it."""

    node: str = ""
    commands: str = ""
    """The commands alone, a line each; "" if they are not known."""


class _OtherRelease(NodeError):
    """The helper on a node is not the one of this release."""


# --- permission -------------------------------------------------------------------------------------------------------


def sudoers(user: str) -> str:
    """The sudoers line that lets `user` run only the helper as root."""
    return f"{user} ALL=(root) NOPASSWD: {HELPER_PATH}"


async def find_helper(channel: Channel) -> Helper:
    """The helper on a node: run directly by root, or installed and permitted by `sudo`.

    Raises:
        NotPermitted: neither. The helper was copied to the node; `do` has the commands that install it.
        NodeError: the node cannot be reached.
    """
    who, home = await asyncio.gather(channel.run(("id", "-un")), channel.run(("printenv", "HOME")))
    if who.stdout.strip() == "root":
        return await _helper(channel, ("python3", "-I", "-c", HELPER.decode()))
    user = who.stdout.strip()
    why = f"{user} may not change the rails of this node."
    try:
        return await _helper(channel, ("sudo", "-n", HELPER_PATH))
    except _OtherRelease as error:
        why = error.what
    except NodeError:
        pass
    raise await _not_permitted(channel, user, home.stdout.strip(), why)


async def _helper(channel: Channel, argv: tuple[str, ...]) -> Helper:
    printed = await _run(channel, (*argv, "show"))
    try:
        shown = _Shown.model_validate_json(printed)
    except ValidationError:
        raise _odd(channel, printed) from None
    if shown.version not in ("", hashlib.sha256(HELPER).hexdigest()):
        raise _OtherRelease(f"{HELPER_PATH} is from another release of sparkfleet, and is used no longer.")
    return Helper(node=channel.node, argv=argv, **shown.model_dump(exclude={"version"}))


async def _not_permitted(channel: Channel, user: str, home: str, why: str) -> NodeError:
    # Both come from the node, and a person will paste them into a shell.
    if not (_USER.fullmatch(user) and _HOME.fullmatch(home)):
        return _odd(channel, f"{user} {home}")
    copy = f"{home}/.local/share/sparkfleet/sparkfleet-rails"
    await channel.write(copy, HELPER, mode=0o700)
    copy = shlex.quote(copy)
    commands = (
        f"  sudo install -D -o root -g root -m 0755 {copy} {HELPER_PATH}\n"
        f"  echo '{sudoers(user)}' | sudo tee /etc/sudoers.d/sparkfleet-rails\n"
        "  sudo chmod 0440 /etc/sudoers.d/sparkfleet-rails"
    )
    refused = NotPermitted(
        f"{channel.node}: {why}",
        means=f"One program has to run as root: {HELPER_PATH}. It sets the addresses of the rails and loads"
        f" the firewall's rules, nothing else; a copy to read is at {copy}.",
        do=f"Run this once on {channel.node}, then try again:\n{commands}",
    )
    refused.node, refused.commands = channel.node, commands
    return refused


# --- the change -------------------------------------------------------------------------------------------------------


async def apply_plan(
    plan: FabricPlan,
    helpers: Mapping[str, Helper],
    channels: Mapping[str, Channel],
    reopen: Reopen,
    *,
    nodes: Collection[str],
    rollback_s: int = ROLLBACK_S,
) -> FabricOutcome:
    """Changes nodes, checks new connections to them and their rails, then confirms or reverts on all of them.

    Args:
        plan: the new configuration; nodes without ports are not changed.
        nodes: those to change. The links of the others stay up: engines may speak over them.
        helpers: by node, from `find_helper`.
        channels: the open connections.
        reopen: opens new ones.
        rollback_s: seconds after which an unconfirmed node reverts its change.
    """
    requests = {one.node: one.request() for one in plan.nodes if one.ports and one.node in nodes}
    return await change(
        ("apply", requests),
        helpers,
        channels,
        reopen,
        check=partial(_find_unreached, plan),
        rollback_s=rollback_s,
    )


async def change(
    what: tuple[str, Mapping[str, object]],
    helpers: Mapping[str, Helper],
    channels: Mapping[str, Channel],
    reopen: Reopen,
    *,
    check: Callable[[Mapping[str, Channel]], Awaitable[list[str]]],
    rollback_s: int,
) -> FabricOutcome:
    """Changes nodes, opens new connections to them, checks, then confirms or reverts on all of them.

    Args:
        what: the helper's command, and its request by node.
        helpers: see `apply_plan`.
        channels: see `apply_plan`.
        reopen: see `apply_plan`.
        check: sentences about what does not work after the change, over the new connections.
        rollback_s: see `apply_plan`.
    """
    command, requests = what
    begun = await asyncio.gather(
        *(
            _begin((command, one), helpers[node], channels[node], rollback_s)
            for node, one in requests.items()
        ),
        return_exceptions=True,
    )
    tokens = {node: token for node, token in zip(requests, begun, strict=True) if isinstance(token, str)}
    problems = [_message(one) for one in begun if isinstance(one, BaseException)]
    fresh, unreached = await _reopen(tokens, reopen)
    problems += unreached
    checked = not problems
    try:
        if checked:
            problems = await check(fresh)
        word = "rollback" if problems else "confirm"
        done, failures = await _answer(word, tokens, helpers, fresh)
        problems += failures
    finally:
        await asyncio.gather(*(channel.close() for channel in fresh.values()))
    confirmed = done if word == "confirm" else ()
    unconfirmed = tuple(node for node in tokens if node not in confirmed) if confirmed else ()
    return FabricOutcome(
        kept=not problems,
        problems=tuple(problems),
        checked=checked,
        confirmed=confirmed,
        unconfirmed=unconfirmed,
    )


async def _begin(what: tuple[str, object], helper: Helper, channel: Channel, rollback_s: int) -> str:
    command, request = what
    printed = await _run(
        channel, (*helper.argv, command, str(rollback_s)), stdin=json.dumps(request).encode()
    )
    token = json_of(printed, dict, "the change").get("token")
    if not isinstance(token, str) or not token.isalnum():
        raise _odd(channel, printed)
    return token


async def _reopen(tokens: Mapping[str, str], reopen: Reopen) -> tuple[dict[str, Channel], list[str]]:
    found = await asyncio.gather(*(_new(node, reopen) for node in tokens), return_exceptions=True)
    fresh = {node: one for node, one in zip(tokens, found, strict=True) if not isinstance(one, BaseException)}
    return fresh, [
        f"{_message(one)} It reverts its change by itself." for one in found if isinstance(one, BaseException)
    ]


async def _new(node: str, reopen: Reopen) -> Channel:
    channel = await reopen(node)
    await channel.run(("true",), timeout_s=30)
    return channel


async def _find_unreached(plan: FabricPlan, channels: Mapping[str, Channel]) -> list[str]:
    """Rails on which full-size packets do not pass. Tries several times, because links take seconds to come back."""
    found = await asyncio.gather(*(_find_unreached_from(plan, channel) for channel in channels.values()))
    return [sentence for one in found for sentence in one]


async def _find_unreached_from(plan: FabricPlan, channel: Channel) -> list[str]:
    mtu = {port.netdev: port.mtu for port in plan.of(channel.node).ports}
    left = list(plan.peers(channel.node))
    for number in range(SETTLE_TRIES):
        if number:
            await asyncio.sleep(SETTLE_PAUSE_S)
        answers = await run_batch(channel, [full_ping(netdev, ip, mtu[netdev]) for netdev, ip in left])
        left = [peer for peer, answer in zip(left, answers, strict=True) if not _answered(answer)]
        if not left:
            break
    return [
        f"{netdev} of {channel.node} does not reach {ip} with packets of {mtu[netdev]} bytes."
        for netdev, ip in left
    ]


def full_ping(netdev: str, address: str, mtu: int) -> tuple[str, ...]:
    """A ping of full `mtu` that must not be fragmented. It waits up to 2 s."""
    size = str(mtu - 28)  # headers of IPv4 and ICMP
    return ("ping", "-4", "-n", "-M", "do", "-s", size, "-c", "1", "-W", "2", "-I", netdev, address)


def _answered(answer: Completed | NodeError) -> bool:
    return not isinstance(answer, NodeError) and answer.exit_code == 0


async def _answer(
    word: str, tokens: Mapping[str, str], helpers: Mapping[str, Helper], channels: Mapping[str, Channel]
) -> tuple[tuple[str, ...], list[str]]:
    """Confirms or reverts on every node that is reached; returns the nodes that have, and sentences about failures."""
    done = await asyncio.gather(
        *(_run(channel, (*helpers[node].argv, word, tokens[node])) for node, channel in channels.items()),
        return_exceptions=True,
    )
    nodes = (node for node, one in zip(channels, done, strict=True) if not isinstance(one, BaseException))
    return tuple(nodes), [_message(one) for one in done if isinstance(one, BaseException)]


async def _run(channel: Channel, argv: Sequence[str], stdin: bytes = b"") -> str:
    done = await channel.run(argv, stdin=stdin, timeout_s=APPLY_S)
    if done.exit_code != 0:
        raise NodeError(f"{channel.node}: {text(' '.join(done.stderr.split())) or 'the helper failed'}")
    return done.stdout


def _odd(channel: Channel, printed: str) -> NodeError:
    return NodeError(
        f"{channel.node}: unexpected answer: {text(printed, 80)}",
        do="Check the login scripts of the node: they must print nothing.",
    )


def _message(error: BaseException) -> str:
    if not isinstance(error, SparkfleetError):
        raise error
    return error.what if error.what.endswith(".") else f"{error.what}."
