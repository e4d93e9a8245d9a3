from control_values import deployment
from control_values import plan as plan_of

from sparkfleet.planner.report.carry_over import RunningGroup
from sparkfleet.planner.report.diff import compare
from sparkfleet.planner.report.explain.change import explain_change


def test_nothing_before_is_a_start(sparks, plan, ask):
    spec = ask()
    change = compare(spec, plan(sparks(1), spec).deployments[0], None)
    assert (change.verb, change.name, change.fields) == ("start", "m", ())


def test_a_start_on_demand_is_named_as_one(sparks, plan, ask):
    spec = ask(on_demand=True)
    found = plan(sparks(1), spec).of("m")
    lines = "\n".join(explain_change(compare(spec, found, None), found))
    assert "+ on demand  m on spark1" in lines
    assert "its first request starts it (no start of it was timed here yet)" in lines
    assert "1 on demand, 0 to change" in lines


def test_a_change_of_one_that_does_not_run_restarts_nothing(sparks, plan, ask):
    spec, after = ask(on_demand=True), ask(on_demand=True, context=8192)
    found = plan(sparks(1), after).of("m")
    change = compare(after, found, (spec, plan(sparks(1), spec).of("m")))
    lines = "\n".join(explain_change(change.model_copy(update={"unloaded": True}), found))
    words = "it does not run now: its next request starts it so (no start of it was timed here yet)"
    assert words in " ".join(lines.split())
    assert "restarts" not in lines


def test_the_same_again_is_kept(sparks, plan, ask):
    spec = ask()
    one, two = plan(sparks(1), spec).deployments[0], plan(sparks(1), spec).deployments[0]
    assert compare(spec, one, (spec, two)).verb == "keep"


def test_a_share_of_the_memory_that_is_predicted_anew_starts_nothing_again(sparks, plan, ask):
    spec, fleet = ask(), sparks(1)
    found = plan(fleet, spec).deployments[0]
    candidate = found.groups[0].choice.candidate.model_copy(update={"memory_fraction": 0.99})
    rung = found.groups[0].choice.model_copy(update={"candidate": candidate})
    older = found.model_copy(update={"groups": (found.groups[0].model_copy(update={"ladder": (rung,)}),)})
    assert compare(spec, found, (spec, older)).verb == "keep"
    assert compare(spec, found, (ask(context=4096), older)).verb == "change"


def test_variables_of_variants_are_named_and_not_shown(sparks, plan, ask):
    variants = [{"model": "Qwen/Qwen3-30B-A3B-FP8", "env": {"HF_TOKEN": secret}} for secret in ("one", "two")]
    before, after = (ask(None, variants=[variant]) for variant in variants)
    fleet = sparks(1)
    change = compare(after, plan(fleet, after).deployments[0], (before, plan(fleet, before).deployments[0]))
    assert "HF_TOKEN" in "".join(change.fields)
    assert not {"one", "two"} & set("".join(change.fields).replace("'", " ").split())


def test_predictions_do_not_matter(sparks, plan, ask):
    found = plan(sparks(1), ask()).deployments[0]
    choice = found.groups[0].ladder[0]
    other = choice.model_copy(update={"reason": "else", "notes": ("a note",)})
    group = found.groups[0].model_copy(update={"ladder": (other,)})
    again = found.model_copy(update={"groups": (group,), "rejected": ()})
    assert compare(ask(), again, (ask(), found)).verb == "keep"


def test_a_change_names_the_fields(sparks, plan, ask):
    before, after = ask(context=4096), ask(context=8192)
    fleet = sparks(1)
    change = compare(after, plan(fleet, after).deployments[0], (before, plan(fleet, before).deployments[0]))
    assert change.verb == "change"
    assert "context: 4096 → 8192" in change.fields


def test_every_group_is_looked_at(sparks, plan, ask):
    spec = ask(replicas=2)
    fleet = sparks(4, switch=True)
    both = plan(fleet, spec).deployments[0]
    first, second = both.groups
    rung = second.choice
    moved = rung.model_copy(
        update={
            "candidate": rung.candidate.model_copy(
                update={"shape": rung.candidate.shape.model_copy(update={"nodes": ("spark4",)})}
            )
        }
    )
    other = both.model_copy(update={"groups": (first, second.model_copy(update={"ladder": (moved,)}))})
    change = compare(spec, other, (spec, both))
    assert change.verb == "change"
    assert any("group 2 shape" in field for field in change.fields)


def test_a_group_that_stays_is_not_named_as_one_that_goes(sparks, plan, ask):
    """Two replicas, of which the first moves to the other's node: "plan.group 2 shape: nodes spark2 → –" was printed."""
    spec = ask(replicas=2, parallel={"tp": 1})
    both = plan(sparks(4, switch=True), spec).deployments[0]
    first, second = both.groups
    other = both.model_copy(update={"groups": (second, second)})
    before, after = (
        f"nodes {one.choice.candidate.shape.nodes[0]}, tp 1, pp 1, ep 1, dcp 1" for one in (first, second)
    )
    fields = compare(spec, other, (spec, both)).fields
    assert [one for one in fields if "shape" in one] == [f"plan.shape: {before} → {after}"]
    alone = both.model_copy(update={"groups": (first,)})
    fields = compare(spec, alone, (spec, both)).fields
    assert "plan.groups: 2 → 1" in fields
    assert [one for one in fields if one.startswith("plan.group 2") and one.endswith("→ –")]


def test_a_change_of_all_groups_is_named_once(sparks, plan, ask):
    before, after = ask(replicas=2, context=4096), ask(replicas=2, context=8192)
    fleet = sparks(4, switch=True)
    change = compare(after, plan(fleet, after).deployments[0], (before, plan(fleet, before).deployments[0]))
    assert [one for one in change.fields if "context" in one] == [
        "context: 4096 → 8192",
    ]


def test_secrets_are_not_shown(sparks, plan, ask):
    before, after = ask(env={"TOKEN": "old-secret"}), ask(env={"TOKEN": "new-secret"})
    fleet = sparks(1)
    change = compare(after, plan(fleet, after).deployments[0], (before, plan(fleet, before).deployments[0]))
    assert change.verb == "change"
    assert change.fields == ("env: another value of TOKEN",)


def test_a_change_of_the_plan_alone_is_named_as_one(sparks, plan, ask):
    fleet = sparks(1)
    small, large = (plan(fleet, ask(context=context)).deployments[0] for context in (4096, 8192))
    assert "plan.context: 4096 → 8192" in compare(ask(), large, (ask(), small)).fields


def test_a_change_of_words_starts_and_ends_nothing(sparks, plan, ask):
    before, after = ask(), ask(keys=("ux",))
    found = plan(sparks(1), before).deployments[0]
    change = compare(after, found, (before, found))
    assert (change.verb, change.starts, change.ends, change.keeps) == ("change", 0, (), ("g1/0",))
    assert change.fields == ("keys: – → ux",)


def test_values_are_shown_as_the_file_has_them(sparks, plan, ask):
    before, after = ask(), ask(parallel={"tp": 1}, speculation="none", engine_args=("--a", "--b"))
    found = plan(sparks(1), before).deployments[0]
    text = "\n".join(compare(after, found, (before, found)).fields)
    assert "parallel: – → tp 1" in text
    assert "speculation: method auto → method none" in text
    assert "engine_args: – → --a --b" in text
    assert not set("'()[]{}") & set(text)


def test_a_group_that_is_replaced_anyway_is_no_change():
    """During a change, while the old engine serves: the same file again was a change that "ends g5/0"."""
    spec, now = deployment("m"), plan_of("m")
    old, new = (RunningGroup(member=(generation, 0), plan=now.groups[0]) for generation in (5, 6))
    for there, replaced, verb, ends in (
        ((new, old), ("g5/0",), "keep", ()),
        ((new, old), (), "change", ("g5/0",)),
        ((new,), (), "keep", ()),
    ):
        change = compare(spec, now, (spec, now), there, replaced)
        assert (change.verb, change.ends) == (verb, ends)


def test_going_back_to_what_serves_is_a_change_if_the_newest_generation_did_not_start():
    """After a drain whose new group did not start, `rollback` printed "No change", and the deployment stayed failed."""
    spec = deployment("m")
    served, failed = (plan_of("m", context=context) for context in (512, 1024))
    there = (RunningGroup(member=(5, 0), plan=served.groups[0]),)
    change = compare(spec, served, (spec, failed), there, ("g5/0",))
    assert (change.verb, change.starts, change.ends, change.keeps) == ("change", 0, (), ("g5/0",))
    assert compare(spec, served, (spec, served), there, ("g5/0",)).verb == "keep"


def test_a_port_on_which_both_listen_is_named():
    before, after = (plan_of("m", engine="custom", port=8000, context=context) for context in (512, 1024))
    assert compare(deployment("m"), after, (deployment("m"), before)).port == 8000
    elsewhere = plan_of("m", engine="custom", port=8001)
    assert compare(deployment("m"), elsewhere, (deployment("m"), before)).port is None


def test_a_place_for_a_lost_node_that_is_new_is_a_change_that_starts_nothing(sparks, plan, ask):
    """A plan of an earlier release has none: the same file never got one."""
    spec, fleet = ask("openai/gpt-oss-120b"), sparks(2)
    found = plan(fleet, spec).of("m")
    group = found.groups[0]
    before = found.model_copy(update={"groups": (group.model_copy(update={"ladder": group.own_rungs}),)})
    change = compare(spec, found, (spec, before))
    assert (change.verb, change.starts, change.ends) == ("change", 0, ())
    assert change.fields == ("plan.without spark1: – → spark2", "plan.without spark2: – → spark1")
    assert compare(spec, before, (spec, found)).verb == "keep", "there may be no room for it now"
    assert compare(spec, found, (spec, found)).verb == "keep"
