"""Rungs for groups that lose a node, and the memory that is kept for them."""

import pytest
from planning_values import FP8, choice

from sparkfleet.planner.packing.standby import HEAD_BYTES
from sparkfleet.planner.place.fleet_map import Fleet
from sparkfleet.planner.report.diff import compare
from sparkfleet.planner.report.explain.change import explain_change
from sparkfleet.planner.report.explain.fleet import explain_nodes
from sparkfleet.planner.report.explain.plan import explain_plan
from sparkfleet.units import GIB, MIB, short_number

MOE = "openai/gpt-oss-120b"
"""Faster on two Sparks, and fits on one."""


@pytest.fixture
def planned(sparks, plan, ask):
    def planned(count, *specs, running=None, head="", **fields):
        fleet = sparks(count, switch=count > 2).model_copy(update={"head": head})
        return plan(fleet, *(specs or (ask(MOE, **fields),)), running=running)

    return planned


def group(found, name="m"):
    return found.of(name).groups[0]


def elsewhere(found, name="m"):
    """Nodes and split of each rung that does without a node, by the lost node."""
    one = group(found, name)
    return {
        lost: (rung.candidate.shape.nodes, rung.candidate.shape.tp)
        for lost in one.choice.candidate.shape.nodes
        if (rung := one.without(lost)) is not None
    }


def kept(found):
    return {load.node: dict(load.kept) for load in found.nodes if load.kept}


def words(lines):
    return " ".join(" ".join(lines).split())


class TestOwnNodes:
    def test_a_group_of_two_goes_on_with_the_node_that_it_has_left(self, planned):
        found = planned(2)
        assert choice(found).candidate.shape.tp == 2
        assert elsewhere(found) == {"spark1": (("spark2",), 1), "spark2": (("spark1",), 1)}
        assert kept(found) == {}, "the node has the group's own memory"
        first, *_, last = group(found).ladder
        assert last.reason.startswith("if spark2 is lost; ")
        assert last.candidate.engine == first.candidate.engine, "its image is there"
        assert last.prediction.decode_tps_per_request.mid < first.prediction.decode_tps_per_request.mid

    def test_its_memory_counts_as_before(self, planned):
        """One node needs more than each of two: the room beside the group is that beside its own rungs."""
        with_rung, without = planned(2), planned(2, standby=False)
        assert [load.left for load in with_rung.nodes] == [load.left for load in without.nodes]
        assert choice(with_rung).prediction == choice(without).prediction

    def test_not_on_a_node_on_which_something_else_has_the_memory(self, plan, ask, spark, link):
        nodes = (spark("spark1", available=60 * GIB), spark("spark2"))
        found = plan(Fleet(nodes=nodes, links=(link("spark1", "spark2"),)), ask(MOE))
        assert choice(found).candidate.shape.tp == 2
        assert elsewhere(found) == {"spark1": (("spark2",), 1)}

    @pytest.mark.parametrize("fields", [{"standby": False}, {"parallel": {"tp": 2}}])
    def test_none_if_the_deployment_excludes_it(self, planned, fields):
        assert elsewhere(planned(2, **fields)) == {}

    def test_a_group_of_one_node_waits_for_it(self, planned):
        assert elsewhere(planned(3, parallel={"tp": 1})) == {}


class TestHead:
    def test_its_loss_has_a_rung_as_any_other_and_its_command(self, planned):
        found = planned(2, head="spark1")
        assert elsewhere(found) == elsewhere(planned(2))
        *_, other, last = group(found).ladder
        assert last.reason.startswith("if spark1 is lost; ")
        assert (number := len(group(found).ladder)) > 2
        lines = words(explain_plan(found.of("m"), head="spark1"))
        speed = last.speed("interactive")
        assert f"without spark2: rung {number - 1}, {other.candidate.shape}" in lines
        assert (
            f"without spark1, the head: rung {number}, spark2 · TP=1 · {speed}, after `sparkfleet move-head spark2 --lost`"
            in lines
        )

    def test_a_rung_for_several_nodes_names_the_one_that_needs_the_command(self, planned):
        found = planned(2)
        first = group(found).choice
        shape = first.candidate.shape.model_copy(
            update={"nodes": ("spark1", "spark2", "spark3", "spark4"), "tp": 4}
        )
        pair = shape.model_copy(update={"nodes": ("spark3", "spark4"), "tp": 2})
        ladder = tuple(
            first.model_copy(update={"candidate": first.candidate.model_copy(update={"shape": one})})
            for one in (shape, pair)
        )
        plan = found.of("m").model_copy(
            update={"groups": (group(found).model_copy(update={"ladder": ladder}),)}
        )
        lines = words(explain_plan(plan, head="spark1"))
        assert "without spark2 or spark1, the head: rung 2, spark3+spark4 · TP=2" in lines
        assert "tok/s, of spark1 after `sparkfleet move-head spark3 --lost`" in lines

    def test_another_node_keeps_room_for_what_the_head_runs(self, planned, ask):
        """Ray, controller and gateway go to one of them."""
        usable = planned(2, head="spark1").nodes[1].usable

        def places(head, size):
            speech = ask(
                "speech/one",
                engine="custom",
                memory=f"{size // MIB} MiB",
                port=5010,
                command=["run"],
                standby=True,
            )
            return elsewhere(planned(2, speech, head=head))

        assert places("spark2", usable - HEAD_BYTES // 2) == {"spark1": (("spark2",), 1)}
        assert places("spark1", usable - HEAD_BYTES // 2) == {}
        assert places("spark1", usable - 2 * HEAD_BYTES) == {"spark1": (("spark2",), 1)}

    def test_memory_is_kept_for_its_loss_with_standby(self, planned):
        found = planned(2, head="spark1", parallel={"tp": 1}, nodes=["spark1", "spark2"], standby=True)
        ((lost, (nodes, _)),) = elsewhere(found).items()
        assert {lost, *nodes} == {"spark1", "spark2"}
        assert kept(found).keys() == set(nodes)

    def test_a_fleet_of_one_node_has_none(self, planned):
        assert elsewhere(planned(1, head="spark1")) == {}
        assert "node lost" not in words(explain_plan(planned(1, head="spark1").of("m"), head="spark1"))


class TestOtherNodes:
    def test_memory_is_kept_on_one_more_node_for_the_loss_of_each(self, planned):
        found = planned(3, standby=True)
        own = group(found).choice.candidate.shape.nodes
        (spare,) = {"spark1", "spark2", "spark3"} - set(own)
        places = {lost: set(nodes) for lost, (nodes, _) in elsewhere(found).items()}
        assert places == {lost: {*own, spare} - {lost} for lost in own}
        assert kept(found).keys() == {spare}
        assert found.of("m").keeps_standby

    def test_it_takes_one_further_node_and_not_more(self, planned, ask):
        """Four would be faster, and three of them would need the weights."""
        others = (ask(MOE, name=f"other{n}") for n in range(3))
        found = planned(8, ask(FP8, standby=True), *others)
        own = group(found).choice.candidate.shape.nodes
        assert len(own) == 2
        for lost, (nodes, _) in elsewhere(found).items():
            assert len(nodes) == len(own)
            assert len(set(nodes) - set(own)) == 1, lost

    def test_the_change_names_the_weights_that_are_copied_for_it(self, planned, ask):
        spec = ask(MOE, standby=True)
        found = planned(3, spec).of("m")
        lines = words(explain_change(compare(spec, found, None), found))
        assert "GB on each node, copied if not there" in lines
        assert "GB on spark3 for a lost node, copied if not there" in lines
        before = ask(MOE)
        change = compare(spec, found, (before, planned(3, before).of("m")))
        lines = words(explain_change(change, found))
        assert "restarts no engine" in lines
        assert "GB on spark3 for a lost node" in lines
        assert "each node" not in lines

    def test_each_replica_has_its_lines_and_its_warnings(self, planned):
        found = planned(3, parallel={"tp": 1}, replicas=2, context=131072, concurrency=2, standby=True).of(
            "m"
        )
        lines = words(explain_plan(found))
        for one in found.groups:
            (node,) = one.choice.candidate.shape.nodes
            assert f"without {node}: rung" in lines
        crowded = planned(2, parallel={"tp": 1}, replicas=2, context=131072, concurrency=2, standby=True)
        lines = words(explain_plan(crowded.of("m")))
        assert [f"no standby if spark{n} is lost" in lines for n in (1, 2)] == [True, True]

    def test_two_groups_of_different_nodes_count_on_the_same_memory(self, planned, ask):
        """One node is lost at a time: a standby for each is no more than one for the largest."""
        sizes = {"context": 131072, "concurrency": 3, "parallel": {"tp": 1}, "standby": True}
        found = planned(3, ask(FP8, name="a", **sizes), ask(FP8, name="b", **sizes))
        assert not found.refused
        (spare,) = kept(found)
        assert {
            elsewhere(found, name)[group(found, name).choice.candidate.shape.nodes[0]] for name in "ab"
        } == {((spare,), 1)}
        load = next(load for load in found.nodes if load.node == spare)
        needs = group(found, "a").choice.prediction.memory_bytes_per_rank.mid
        assert sum(size for _, size in load.kept) == pytest.approx(needs, rel=0.01)
        assert load.left == pytest.approx(load.usable - needs, rel=0.01)

    def test_a_pinned_group_has_its_standby_among_its_nodes(self, planned):
        found = planned(3, parallel={"tp": 1}, nodes=["spark1", "spark3"], standby=True)
        assert {nodes for nodes, _ in elsewhere(found).values()} <= {("spark1",), ("spark3",)}

    @pytest.mark.parametrize("count", [1, 2])
    def test_without_one_the_plan_warns(self, planned, count):
        found = planned(count, standby=True, parallel={"tp": count})
        assert "is lost: no other nodes can serve it beside the rest" in words(explain_plan(found.of("m")))
        assert elsewhere(found) == {}

    def test_a_custom_workload_keeps_its_port(self, planned, ask):
        speech = ask("speech/one", engine="custom", memory="8 GiB", port=5010, command=["run"], standby=True)
        found = planned(2, speech)
        (rung,) = group(found).rungs_elsewhere
        assert rung.candidate.port == 5010
        assert kept(found)[rung.candidate.shape.nodes[0]] == {"m": 8 * GIB}

    def test_a_split_group_of_processors(self, plan, ask, cpu_node, link):
        nodes = tuple(cpu_node(name) for name in ("a", "b", "c"))
        fleet = Fleet(nodes=nodes, links=tuple(link(one.name, switch="sw") for one in nodes))
        found = plan(fleet, ask("builtin:tiny", parallel={"tp": 2}, standby=True))
        assert {lost: set(nodes) for lost, (nodes, _) in elsewhere(found).items()} == {
            "a": {"b", "c"},
            "b": {"a", "c"},
        }
        assert kept(found).keys() == {"c"}


class TestOffers:
    """Of a group on one node, which waits for it: what `standby: true` would keep."""

    def test_it_is_what_a_standby_then_keeps(self, planned, ask):
        found = planned(2, ask(FP8, parallel={"tp": 1}), head="spark1")
        ((node, by_name),) = kept(planned(2, ask(FP8, parallel={"tp": 1}, standby=True))).items()
        (offer,) = found.offers
        assert (offer.name, offer.node, offer.bytes) == ("m", node, by_name["m"])
        assert {offer.lost, offer.node} == {"spark1", "spark2"}
        assert kept(found) == {}, "nothing is kept"
        lines = words(explain_plan(found.of("m"), offers=found.offers))
        size = f"{short_number(offer.bytes / GIB)} GiB"
        assert (
            f"node lost without {offer.lost}: it waits; `standby: true` would keep {size} on {node} for it"
            in lines
        )

    def test_the_others_are_planned_as_without_it(self, planned, ask):
        specs = [ask(FP8, name=name, parallel={"tp": 1}) for name in "ab"]
        found = planned(3, *specs)
        assert [offer.name for offer in found.offers] == ["a", "b"]
        refused = planned(3, *(spec.model_copy(update={"standby": False}) for spec in specs))
        assert [load.placed for load in found.nodes] == [load.placed for load in refused.nodes]
        assert refused.offers == ()

    def test_none_on_memory_that_something_else_has(self, planned, ask):
        sizes = {"context": 131072, "concurrency": 8, "parallel": {"tp": 1}}
        found = planned(2, *(ask(FP8, name=name, **sizes) for name in "ab"))
        assert (found.refused, found.offers) == ((), ())

    @pytest.mark.parametrize(
        "fields",
        [
            {"standby": False},
            {"standby": True},
            {"on_demand": True},
            {"replicas": 2},
            {"nodes": ["spark1"]},
        ],
    )
    def test_none_for_one_that_says_so_shares_its_nodes_or_has_no_other(self, planned, fields):
        assert planned(2, parallel={"tp": 1}, **fields).offers == ()

    def test_none_for_a_group_of_two_which_has_its_rungs(self, planned):
        assert planned(2).offers == ()
        assert planned(1).offers == ()

    def test_a_port_that_is_declared_there_is_not_offered(self, planned, ask):
        one, two = (
            ask(
                f"speech/{name}",
                name=name,
                engine="custom",
                memory="8 GiB",
                port=5010,
                command=["run"],
                nodes=nodes,
            )
            for name, nodes in (("a", ["spark1", "spark2"]), ("b", ["spark2"]))
        )
        assert [offer.node for offer in planned(2, one).offers] == ["spark2"]
        assert planned(2, one, two).offers == ()


class TestLaterPlans:
    """Deployments that are planned while another one keeps memory."""

    @pytest.fixture
    def running(self, planned, ask):
        return {
            "m": planned(2, ask(MOE, parallel={"tp": 1}, nodes=["spark1", "spark2"], standby=True)).of("m")
        }

    def test_the_kept_memory_is_not_theirs(self, sparks, plan, ask, running):
        (spare,) = group_nodes(running["m"].groups[0].rungs_elsewhere[0])
        other = ask(MOE, name="other", nodes=[spare])
        fleet = sparks(2, assumed=False)
        assert plan(fleet, other, running={}).refused == ()
        found = plan(fleet, other, running=running)
        assert found.refused
        assert f"kept in case a node is lost: m {running_bytes(running) / GIB:.0f} GiB" in words(
            explain_nodes(found.nodes)
        )

    def test_one_on_demand_may_have_it_meanwhile(self, sparks, plan, ask, running):
        (spare,) = group_nodes(running["m"].groups[0].rungs_elsewhere[0])
        other = ask(MOE, name="other", nodes=[spare], on_demand=True)
        assert not plan(sparks(2, assumed=False), other, running=running).refused

    def test_the_same_deployment_has_it_back(self, sparks, plan, ask, running):
        spec = ask(MOE, parallel={"tp": 1}, nodes=["spark1", "spark2"], standby=True)
        found = plan(sparks(2, assumed=False), spec, running=running)
        assert (
            group(found).rungs_elsewhere[0].candidate == running["m"].groups[0].rungs_elsewhere[0].candidate
        )


def group_nodes(rung):
    return rung.candidate.shape.nodes


def running_bytes(running):
    return running["m"].groups[0].rungs_elsewhere[0].prediction.memory_bytes_per_rank.mid
