import pytest

from sparkfleet.perf.prediction import Band, Prediction, Speculation
from sparkfleet.planner.rules.failure_memory import RememberedFailure, fingerprint, without_failed
from sparkfleet.planner.types.plan import Candidate, DeploymentPlan, GroupPlan, GroupShape, Rung

DRIVERS = tuple((f"spark{number}", "580.142") for number in (1, 2, 3))
NOON = 1_795_176_000.0  # 2026-11-20 12:00 UTC


def rung(method="none", *nodes, **fields):
    nodes = nodes or ("spark1",)
    fields = {"context": 512, "concurrency": 4, "engine_version": "0.32.0", **fields}
    candidate = Candidate(
        model="org/model",
        shape=GroupShape(nodes=nodes, tp=len(nodes)),
        engine="vllm",
        speculation=Speculation(method=method),
        **fields,
    )
    memory = Band(low=0.0, mid=1.0, high=2.0)
    return Rung(candidate=candidate, prediction=Prediction(memory_bytes_per_rank=memory), reason="")


def plan(*rungs, drivers=DRIVERS):
    groups = (GroupPlan(ladder=rungs),)
    return DeploymentPlan(name="m", objective="interactive", groups=groups, drivers=drivers)


def failed(rung, drivers=DRIVERS, **fields):
    mark = fingerprint(rung.candidate, drivers)
    return RememberedFailure(fingerprint=mark, words="out of memory: too little", **fields)


def first(plan_, *failures):
    """The rung that is tried first."""
    return without_failed(plan_, failures).groups[0].ladder[0]


def test_what_did_not_start_here_is_not_tried_first_again():
    after = without_failed(plan(rung("mtp"), rung("ngram")), [failed(rung("mtp"))])
    assert [one.candidate.speculation.method for one in after.groups[0].ladder] == ["ngram"]


@pytest.mark.parametrize(
    ("until", "ends"),
    [
        (None, "barred until its image, a setting or a driver changes"),
        (NOON, "barred until 2026-11-20 12:00 UTC"),
    ],
)
def test_why_for_how_long_and_what_to_do_about_it_is_told(until, ends):
    (told,) = without_failed(plan(rung("mtp"), rung()), [failed(rung("mtp"), until=until)]).rejected
    assert told.what == "spark1 · TP=1 · vllm 0.32.0 · MTP k=0"
    why = "did not start here: out of memory: too little"
    assert told.reason == f"{why}; {ends}; `sparkfleet apply --retry` tries it again"


@pytest.mark.parametrize(
    "fields", [{"context": 256}, {"image": "x@sha256:1"}, {"engine_version": "0.33.0"}, {"concurrency": 8}]
)
def test_another_image_version_or_setting_is_another_matter(fields):
    tried = rung("mtp", **fields)
    assert first(plan(tried, rung()), failed(rung("mtp"))) == tried


def test_the_nodes_count_all_of_them_and_in_no_order():
    """A failure on s1 and s2 may be s2's fault: s1 and s3 is another matter, s2 and s1 is not."""
    failure = failed(rung("mtp", "spark1", "spark2"))
    other = rung("mtp", "spark1", "spark3")
    assert first(plan(other, rung()), failure) == other
    assert first(plan(rung("mtp", "spark2", "spark1"), rung()), failure) == rung()


def test_another_driver_on_one_of_its_nodes_is_another_matter():
    tried, failure = rung("mtp", "spark1", "spark2"), failed(rung("mtp", "spark1", "spark2"))
    updated = (DRIVERS[0], ("spark2", "590.10"), DRIVERS[2])
    assert first(plan(tried, rung(), drivers=updated), failure) == tried
    elsewhere = (*DRIVERS[:2], ("spark3", "590.10"))
    assert first(plan(tried, rung(), drivers=elsewhere), failure) == rung()


def test_the_last_rung_stays():
    only = plan(rung("mtp"))
    after = without_failed(only, [failed(rung("mtp"))])
    assert (after.groups, after.rejected) == (only.groups, ())


def test_what_else_is_known_of_a_group_stays():
    before = plan(rung("mtp"), rung("ngram"))
    group = before.groups[0].model_copy(update={"variant": 1, "vision": True})
    after = without_failed(before.model_copy(update={"groups": (group,)}), [failed(rung("mtp"))])
    assert after.groups == (group.model_copy(update={"ladder": group.ladder[1:]}),)


def test_without_failures_nothing_changes():
    whole = plan(rung("mtp"), rung())
    assert without_failed(whole, []) is whole
