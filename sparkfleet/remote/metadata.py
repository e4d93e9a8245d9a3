"""Asks nodes for the outlines of checkpoints, all nodes at once, one round trip for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.checkpoints.remote_metadata import Hearing, MetadataRequest, Outline, order, program
from sparkfleet.errors import FactError, NodeError, SparkfleetError
from sparkfleet.hostfacts.fact import text
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.remote.parallel import fan_out

ASK_S = 60.0
"""For all headers of a checkpoint from a disk that is busy."""


async def ask_outlines(
    channels: Mapping[str, Channel], wanted: Sequence[MetadataRequest], *, timeout_s: float = ASK_S
) -> dict[str, tuple[Outline | None, ...] | SparkfleetError]:
    """For each node what it has of each that is wanted (None: nothing), or why it did not tell.

    Args:
        channels: the nodes to ask.
        wanted: what to look for.
        timeout_s: seconds for each node.
    """

    async def ask(channel: Channel) -> tuple[Outline | None, ...]:
        hearing = Hearing(wanted)
        try:
            done = await channel.run(
                program(), stdin=order(wanted), timeout_s=timeout_s, on_output=hearing.feed
            )
        except FactError as error:
            raise FactError(f"{channel.node}: {error.what}", means=error.means, do=error.do) from error
        return _told(channel.node, done, hearing)

    return await fan_out(channels, ask, timeout_s=timeout_s)


def _told(node: str, done: Completed, hearing: Hearing) -> tuple[Outline | None, ...]:
    heard = hearing.outlines()
    if heard is None:
        said = text(done.stderr.strip()[-300:]) or "it said nothing"
        raise NodeError(
            f"{node}: its Python did not look for checkpoints (exit code {done.exit_code}): {said}",
            do="sparkfleet needs a `python3`, 3.8 or later, on the node.",
        )
    return heard
