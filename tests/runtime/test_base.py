from __future__ import annotations

import pytest

from sparkfleet.runtime.base import RankId


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
