"""Cost of an all-reduce over a link."""

from __future__ import annotations

from sparkfleet.knowledge.ceilings import LinkSpeed


def all_reduce_s(link: LinkSpeed, ranks: int, payload_bytes: float) -> tuple[float, float]:
    """Seconds of one all-reduce of `payload_bytes` over `ranks` nodes: (its latency, its transfer).

    Latency grows with the rounds of a tree (one for a pair, two for four nodes); a ring moves every byte
    2 · (n - 1) / n times over each link.
    """
    if ranks < 2:
        return 0.0, 0.0
    rounds = (ranks - 1).bit_length()
    return rounds * link.latency_us * 1e-6, 2 * (ranks - 1) / ranks * payload_bytes / (link.gb_per_s * 1e9)
