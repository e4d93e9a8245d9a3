"""Reads the outlines of checkpoints on nodes, all nodes at once, one round trip each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkfleet.checkpoints.remote_metadata import MetadataRequest, Outline, OutlineParser, order, program
from sparkfleet.errors import FactError, NodeError, SparkfleetError
from sparkfleet.hostfacts.fact import text
from sparkfleet.remote.channel import Channel, Completed
from sparkfleet.remote.parallel import fan_out

ASK_S = 60.0
"""Seconds for all headers of a checkpoint on a busy disk."""


async def ask_outlines(
    channels: Mapping[str, Channel], wanted: Sequence[MetadataRequest], *, timeout_s: float = ASK_S
) -> dict[str, tuple[Outline | None, ...] | SparkfleetError]:
    """The outline of each requested checkpoint by node (None if the node does not have it), or the node's error.

    Args:
        timeout_s: seconds for each node.
    """

    async def ask(channel: Channel) -> tuple[Outline | None, ...]:
        parser = OutlineParser(wanted)
        try:
            done = await channel.run(
                program(), stdin=order(wanted), timeout_s=timeout_s, on_output=parser.feed
            )
        except FactError as error:
            raise FactError(f"{channel.node}: {error.what}", means=error.means, do=error.do) from error
        return _outlines(channel.node, done, parser)

    return await fan_out(channels, ask, timeout_s=timeout_s)


def _outlines(node: str, done: Completed, parser: OutlineParser) -> tuple[Outline | None, ...]:
    outlines = parser.outlines()
    if outlines is None:
        output = text(done.stderr.strip()[-300:]) or "no output"
        raise NodeError(
            f"{node}: its Python did not read the checkpoints (exit code {done.exit_code}): {output}",
            do="sparkfleet needs Python 3.8 or later on the node; check `python3 --version` there.",
        )
    return outlines
