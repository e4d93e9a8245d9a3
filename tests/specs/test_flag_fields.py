"""Flags of engines that have a field."""

import pytest

from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.flag_fields import DEGREES, SIZES, field_of
from sparkfleet.specs.parallel import Parallel


def test_a_flag_sets_one_field_and_each_field_exists() -> None:
    assert not set(SIZES) & set(DEGREES)
    assert set(SIZES.values()) <= set(Deployment.model_fields)
    assert set(DEGREES.values()) <= set(Parallel.model_fields)


@pytest.mark.parametrize("flag", ["--max-running-requests", "max-running-requests", "max_running_requests"])
def test_a_flag_in_any_spelling_has_its_field(flag: str) -> None:
    assert field_of(flag) == "concurrency: …"


def test_degrees_are_under_parallel_and_other_flags_have_no_field() -> None:
    assert field_of("tp_size") == "parallel: {tp: …}"
    assert field_of("kv_cache_dtype") is None
