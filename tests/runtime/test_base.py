from __future__ import annotations

import pytest

from sparkfleet.runtime.base import RankId


@pytest.fixture
def spec(make_spec):
    return make_spec(("serve", "--port", "8001"), port=8001, env=(("PORT", "8001"),))


def test_the_port_is_no_part_of_the_digest(spec, make_spec):
    moved = make_spec(("serve", "--port", "8002"), port=8002, env=(("PORT", "8002"),))
    assert moved.digest == spec.digest


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ("serve", "--port", "8002")},
        {"env": ()},
        {"secret_env": (("KEY", "1"),)},
        {"prepare": ("build",)},
        {"lease_s": 1.0},
    ],
)
def test_everything_else_is(spec, change):
    assert spec.model_copy(update=change).digest != spec.digest


def test_an_id_in_words(rank_id):
    assert str(rank_id) == "home/qwen/g1/0/0"
    assert rank_id.slug == "home_qwen_g1_0_0"


@pytest.mark.parametrize("deployment", ["tiny", "org/name", "a/g1/0/0"])
def test_an_id_is_read_as_it_was_written(deployment):
    id_ = RankId(fleet="home-1", deployment=deployment, generation=12, replica=3, rank=1)
    assert RankId.parse(str(id_)) == id_


@pytest.mark.parametrize("text", ["", "home", "home/tiny/1/0/0", "home/tiny/g1/0", "home/tiny/gx/0/0"])
def test_what_is_no_id_is_none(text):
    assert RankId.parse(text) is None
