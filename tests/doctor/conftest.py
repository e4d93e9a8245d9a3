import pytest
from sparks import Spark, inventory

from sparkfleet.doctor.collect import gather, with_context
from sparkfleet.doctor.measure import path_of
from sparkfleet.doctor.registry import examine
from sparkfleet.fabric.link_measurements import TransportProof
from sparkfleet.fabric.measure import pairs_of


@pytest.fixture
def sparks():
    """Two healthy Sparks; make them ill before they are examined."""
    return Spark(1), Spark(2)


@pytest.fixture
def look(sparks):
    """Readings of both nodes, with a healthy link measured."""

    async def look(**context):
        fleet = await gather(inventory(), {spark.name: spark.channel() for spark in sparks}, timeout_s=5)
        measured = context.pop("measured", {})
        (pair,) = pairs_of(inventory())
        path = path_of(pair)
        healthy = {
            "gbit_per_s": 98.0,
            "measured_with": "ib_write_bw",
            "one_way_us": 1.5,
            "ping_us": 600.0,
            "jumbo": True,
            "reached": True,
        }
        rails = [
            rail.model_copy(update=healthy | measured.get(number, {}))
            for number, rail in enumerate(path.rails, start=1)
        ]
        proof = context.pop("proof", TransportProof(moved={}, holds=True, said="moved on the rails"))
        path = path.model_copy(update={"rails": tuple(rails), "proof": proof})
        given = {"sparkfleet": "0.1.0", **context}
        return with_context(fleet, paths=[path], **given)

    return look


@pytest.fixture
def findings(look):
    """findings() → every finding that is no "ok" and not only "not known", by id."""

    async def findings(**context):
        return [one for one in examine(await look(**context)) if one.severity in ("error", "warning", "info")]

    return findings
