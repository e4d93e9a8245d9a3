"""Rules of the knowledge base as checks of nodes."""

from sparkfleet.doctor import registry
from sparkfleet.doctor.rule_checks import situation_of
from sparkfleet.hostfacts.machine import ReadIdentity
from sparkfleet.knowledge.rules.rules import doctor_rules


async def test_a_kernel_that_caps_roce_is_found_by_its_rule(sparks, findings):
    for spark in sparks:
        spark.change(ReadIdentity.argv, "6.17.0-1026-nvidia", "6.17.0-1008-nvidia")
    told = await findings()
    assert {one.id for one in told} == {"kernel-617-roce-cap"}
    assert {one.subject for one in told} == {"spark1", "spark2"}
    assert "rules.yaml" in told[0].source


async def test_every_rule_for_the_doctor_is_applied_or_covered(look):
    told = {one.id for one in registry.examine(await look())}
    for rule in doctor_rules():
        assert rule.id in told or rule.id in registry.COVERED


async def test_every_fact_that_an_applied_rule_reads_is_one_that_is_read_of_a_node(look):
    """A rule about a fact that nothing collects is "not known" for ever; it belongs to `not_rules`, with a reason."""
    fleet = await look()
    given = [dict(situation_of(node, fleet)) for node in fleet.nodes]
    read = {fact for facts in given for fact, value in facts.items() if value is not None}
    applied = [rule for rule in doctor_rules() if rule.id not in registry.COVERED]
    assert applied
    assert {rule.id: set(rule.facts) - read for rule in applied if set(rule.facts) - read} == {}


async def test_every_applied_rule_is_decided_for_two_healthy_sparks(look):
    told = registry.examine(await look())
    applied = {rule.id for rule in doctor_rules()} - registry.COVERED
    assert {one.id: one.what for one in told if one.id in applied and one.severity != "ok"} == {}
