from sparkfleet.cli.deployment.history import history_lines
from sparkfleet.fleet.deployments.history import GenerationEntry


def entry(generation, *fields, current=False, groups=("g1/0",)):
    return GenerationEntry(
        generation=generation, who="me@desk", since=0.0, groups=groups, fields=fields, current=current
    )


def test_the_newest_generation_comes_first_with_its_changes():
    lines = history_lines("tiny", [entry(1), entry(2, "keys: – → ux", current=True)])
    assert lines[0] == "tiny: 2 generations"
    assert lines[1].split()[0] == "2"
    assert lines[1].endswith("me@desk   groups g1/0   current")
    assert lines[2].strip() == "keys: – → ux"
    assert lines[-1] == "`sparkfleet rollback tiny GENERATION` goes back to one of them."


def test_what_a_plan_launches_is_named_as_planned():
    """`plan.concurrency` is no field of any file."""
    lines = history_lines(
        "tiny", [entry(1), entry(2, "concurrency: – → 4", "plan.concurrency: 8 → 4", current=True)]
    )
    assert [line.strip() for line in lines[2:4]] == ["concurrency: – → 4", "planned concurrency: 8 → 4"]


def test_a_deployment_that_was_deleted_can_come_back():
    assert history_lines("tiny", [entry(1)])[-1] == (
        "tiny was deleted; `sparkfleet rollback tiny` brings the newest generation back."
    )


def test_a_single_generation_offers_nothing_to_go_back_to():
    assert len(history_lines("tiny", [entry(1, current=True)])) == 2


def test_a_restart_is_named_as_one():
    """It had a line without a change, as if the list were incomplete."""
    lines = history_lines("tiny", [entry(1), entry(2, groups=("g2/0",), current=True)])
    assert lines[2] == "        as generation 1: its engines were started again"
    assert lines[3].split()[0] == "1"
