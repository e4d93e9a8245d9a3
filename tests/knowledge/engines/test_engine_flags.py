import pytest

from sparkfleet.knowledge.engines.engine_flags import unknown_flags


def found(*flags, engine="vllm", version="0.32.0+cpu"):
    return [(one.flag, one.near, one.certain) for one in unknown_flags(engine, version, flags)]


def test_a_misspelt_flag_is_found_with_the_nearest_one():
    assert found("--max-num-seqq") == [("--max-num-seqq", "--max-num-seqs", True)]


@pytest.mark.parametrize(
    "flag",
    [
        "--max-num-seqs",
        "--max_num_seqs",
        "--max-num-seq",
        "--no-enable-prefix-caching",
        "--compilation-config.mode",
        "-tp",
    ],
)
def test_flags_of_the_parser_are_known(flag):
    assert found(flag) == []


def test_of_a_release_that_is_not_known_only_doubts_are_found():
    assert found("--max-num-seqs", version="0.28.0") == []
    ((flag, near, certain),) = found("--no-such-thing-at-all", version="0.28.0")
    assert (flag, near, certain) == ("--no-such-thing-at-all", "", False)
    (one,) = unknown_flags("vllm", "0.28.0", ["--no-such-thing-at-all"])
    assert one.words("vllm", "0.28.0") == (
        "--no-such-thing-at-all is no flag of vLLM 0.19 and 0.32, the releases whose flags are known"
    )


def test_an_engine_without_lists_is_not_judged():
    assert found("--anything", engine="custom", version="") == []


def test_every_patch_of_sglang_has_its_own_flags():
    assert found("--tp-size", engine="sglang", version="0.5.23") == []
    assert found("--no-such-flag-x", engine="sglang", version="0.5.20")[0][2] is False
