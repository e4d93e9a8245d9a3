"""Shares of a deployment's `concurrency`."""

import pytest
from control_values import plan
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.planner.types.group_share import requests_share, share_that_runs, shared
from sparkfleet.specs.deployment import Variant


@given(st.integers(1, 4096), st.integers(1, 64))
def test_the_shares_hold_all_requests_and_none_is_larger_than_needed(requests, groups):
    each = requests_share(requests, groups)
    assert (each - 1) * groups < requests <= each * groups


def running(each, total=None, groups=1):
    return tuple(
        group.model_copy(update={"shared_concurrency": total})
        for group in plan(groups=groups, concurrency=each).groups
    )


@pytest.mark.parametrize(
    ("groups", "requests", "kept"),
    [
        (running(8, 32), 32, 8),
        (running(8, 32), 16, None),
        (running(32), 32, 32),  # of an earlier release, or alone
        (running(4), 32, None),
        (running(8, 32), None, None),
        ((), 32, None),
    ],
)
def test_what_runs_keeps_its_share_of_the_same_number(groups, requests, kept):
    model = groups[0].choice.candidate.model if groups else "builtin:tiny"
    assert share_that_runs(Variant(model=model, concurrency=requests), groups) == kept


def test_another_model_is_sized_anew():
    assert share_that_runs(Variant(model="other/model", concurrency=32), running(8, 32)) is None


def test_only_a_share_is_stored():
    assert (shared(32, 8), shared(32, 32), shared(None, 4)) == (32, None, None)
