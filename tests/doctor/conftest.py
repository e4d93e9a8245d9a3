import pytest
from sparks import Spark, inventory

from sparkfleet.doctor.gather import gather, with_context
from sparkfleet.doctor.gathered import TransportProof
from sparkfleet.doctor.registry import examine


@pytest.fixture
def sparks():
    """Two healthy Sparks; make them ill before they are examined."""
    return Spark(1), Spark(2)


@pytest.fixture
def look(sparks):
    """What is read of both, with a healthy link measured."""

    async def look(**context):
        fleet = await gather(inventory(), {spark.name: spark.channel() for spark in sparks}, timeout_s=5)
        measured = context.pop("measured", {})
        (link,) = fleet.links
        rails = [
            rail.model_copy(
                update={
                    "gbit_per_s": 98.0,
                    "measured_with": "ib_write_bw",
                    "latency_us": 600.0,
                    "jumbo": True,
                    **measured.get(number, {}),
                }
            )
            for number, rail in enumerate(link.rails, start=1)
        ]
        proof = TransportProof(sent_bytes=10**9, rails_bytes=(5 * 10**8, 5 * 10**8), lan_bytes=20_000)
        link = link.model_copy(update={"rails": tuple(rails), "proof": context.pop("proof", proof)})
        given = {"sparkfleet": "0.1.0", "ray": "2.60.0", **context}
        return with_context(fleet, links=[link], **given)

    return look


@pytest.fixture
def findings(look):
    """findings() → every finding that is no "ok" and not only "not known", by id."""

    async def findings(**context):
        return [one for one in examine(await look(**context)) if one.severity in ("error", "warning", "info")]

    return findings
