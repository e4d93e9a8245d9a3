import pytest

from sparkfleet.planner.report.rendezvous import open_rendezvous


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_pair_without_the_firewall_is_planned_with_a_warning_that_names_the_command(
    plan, sparks, ask, engine
):
    found = plan(sparks(2), ask(engine=engine, parallel={"tp": 2}, speculation="none"))
    assert {len(rung.candidate.shape.nodes) for rung in found.deployments[0].groups[0].ladder} == {2}
    (line,) = open_rendezvous(found, ("spark2", "spark1"))
    assert line.startswith("warning: spark1, spark2: the port where ranks meet (PyTorch's store) is open")
    assert "unpickles: any machine that reaches it runs code" in line
    assert "`sparkfleet fabric firewall --apply` closes it" in line
    assert open_rendezvous(found, ("spark2",))[0].startswith("warning: spark2: ")
    assert open_rendezvous(found, ()) == ()


def test_groups_of_one_node_have_no_port_where_ranks_meet(plan, sparks, ask):
    found = plan(sparks(2), ask(engine="vllm", parallel={"tp": 1}))
    assert found.deployments
    assert open_rendezvous(found, ("spark1", "spark2")) == ()
