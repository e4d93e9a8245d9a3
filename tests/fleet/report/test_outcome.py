"""Last lines of `apply`: the running deployment, its rung, the reason and the cost."""

import pytest
from rungs import sglang_rung as rung

from sparkfleet.cli.deployment import apply, describe
from sparkfleet.controlplane.state.status import DeploymentStatus
from sparkfleet.fleet.deployments.status import DescribedDeployment
from sparkfleet.fleet.report.outcome import RETRY, failed_lines, rung_lines
from sparkfleet.group.report import GroupPhase, GroupReport
from sparkfleet.planner.types.plan import DeploymentPlan, GroupPlan

LADDER = (rung("nextn", 22.6), rung("ngram", 12.7), rung("none"))
WHY = ("known issue sglang-nextn-none-typeerror: it subtracts nothing", "out of memory: [2 GiB] left")


def report(**fields):
    fields = {"replica": 0, "rung": 0, "measured": {"ttft_ms": 200.0, "decode_tps": 6.0}, **fields}
    return GroupReport(
        deployment="m", generation=1, phase=GroupPhase.READY, node="spark1", since=1.0, **fields
    )


def deployment(*reports, passed=(), groups=1, state="ready"):
    plan = DeploymentPlan(name="m", objective="interactive", groups=(GroupPlan(ladder=LADDER),) * groups)
    return DeploymentStatus(
        name="m", generation=1, state=state, detail="", who="me", since=0.0, plan=plan, groups=reports, passed=passed
    )  # fmt: skip


def lines(at, passed):
    one = report(rung=at)
    return list(rung_lines(deployment(one, passed=passed), one))


def test_at_the_first_rung_there_is_nothing_to_explain():
    assert lines(0, ((),)) == ["rung 1 of 3: spark1 · TP=1 · SGLang 0.5.12 · NEXTN k=3"]


def test_at_a_lower_rung_why_and_what_is_lost_against_the_first():
    assert lines(1, (WHY[:1],)) == [
        "rung 2 of 3: spark1 · TP=1 · SGLang 0.5.12 · NGRAM k=3",
        f"rung 1 not used, spark1 · TP=1 · SGLang 0.5.12 · NEXTN k=3: {WHY[0]}",
        "against rung 1: predicted 12.7 instead of 22.6 tok/s for one user (-44 %)",
    ]


def test_every_rung_above_is_explained_and_a_loss_that_is_not_known_is_said_to_be():
    told = lines(2, (WHY,))
    assert [line.partition(",")[0] for line in told[1:3]] == ["rung 1 not used", "rung 2 not used"]
    assert told[3] == "against rung 1: the difference in speed is not predicted"


def test_apply_ends_with_it(capsys):
    one = report(rung=2)
    apply.print_outcome({"m": deployment(one, passed=(WHY,))})
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    assert first.startswith("m is ready: TTFT 200 ms")
    assert "[2 GiB] left" in out, "not read as markup"
    assert "the difference in speed is not predicted" in rest[-1]


def test_each_group_has_its_own_rung(capsys):
    apply.print_outcome(
        {"m": deployment(report(), report(replica=1, rung=1), groups=2, passed=((), WHY[:1]))}
    )
    out = capsys.readouterr().out
    assert "rung 1 of 3" in out
    assert "rung 2 of 3" in out
    assert out.count("against rung 1") == 1


def test_what_failed_says_why_of_each_rung(capsys):
    given_up = deployment(passed=((*WHY, "it ended with exit code 1."),), state="failed")
    assert [line.partition(",")[0] for line in failed_lines(given_up)] == [
        "rung 1 not used",
        "rung 2 not used",
        "rung 3 not used",
    ]
    apply.print_outcome({"m": given_up})
    err = capsys.readouterr().err
    assert "it ended with exit code 1" in err
    assert err.rstrip().endswith(f"  {RETRY}")


def test_describe_shows_it(capsys):
    describe._show(DescribedDeployment(deployment(report(rung=1), passed=(WHY[:1],)), ()))
    assert "    against rung 1: predicted 12.7 instead of 22.6" in capsys.readouterr().out
    describe._show(DescribedDeployment(deployment(passed=(WHY,), state="failed"), ()))
    out = capsys.readouterr().out
    assert "  rung 2 not used, " in out
    assert f"  {RETRY}\n" in out


@pytest.mark.parametrize("passed", [(), ((),)])
def test_what_nobody_has_said_is_left_out(passed):
    assert list(failed_lines(deployment(passed=passed, state="failed"))) == []
    assert len(lines(1, passed)) == 2
