import pytest

from sparkfleet.knowledge.engines.engine_flags import flag_faults


def found(*flags, engine="vllm", version="0.32.0+cpu"):
    named = dict.fromkeys(flags, "")
    return [(one.flag, one.near, one.certain) for one in flag_faults(engine, version, named)]


def test_a_misspelt_flag_is_found_with_the_nearest_one():
    assert found("--max-num-seqq") == [("--max-num-seqq", ("--max-num-seqs",), True)]


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
    assert (flag, near, certain) == ("--no-such-thing-at-all", (), False)
    (one,) = flag_faults("vllm", "0.28.0", {"--no-such-thing-at-all": ""})
    assert one.releases == ("0.19", "0.32")
    assert one.words("vllm", "0.28.0") == (
        "--no-such-thing-at-all is no flag of vLLM 0.19 and 0.32, the releases whose flags are known"
    )


@pytest.mark.parametrize(
    ("version", "certain"), [("0.15.1", None), ("0.28.0", False), ("0.33.0", False), ("", False)]
)
def test_a_flag_that_later_releases_have_no_more_is_found(version, certain):
    """`--swap-space` went between 0.15 and 0.19: a build whose release is not known is one of the newer ones."""
    assert [found[2] for found in found("--swap-space", version=version)] == [certain] * (certain is not None)


def test_releases_next_to_one_are_searched():
    (one,) = flag_faults("vllm", "0.13.0", {"--no-such-thing-at-all": ""})
    assert one.releases == ("0.12", "0.15")


def test_an_engine_without_lists_is_not_judged():
    assert found("--anything", engine="custom", version="") == []


def test_every_patch_of_sglang_has_its_own_flags():
    assert found("--tp-size", engine="sglang", version="0.5.23") == []
    assert found("--no-such-flag-x", engine="sglang", version="0.5.20")[0][2] is False


@pytest.mark.parametrize(
    ("engine", "version", "flag", "value", "words"),
    [
        ("vllm", "0.32.0+cpu", "--dtype", "float99", "vLLM 0.32.0+cpu refuses --dtype=float99; it takes"),
        ("vllm", "0.19.0", "--kv-cache-dtype", "fp8_e9", "vLLM 0.19.0 refuses --kv-cache-dtype="),
        ("vllm", "0.32.0", "--kv_cache_dtype", "fp8_e9", "refuses --kv_cache_dtype=fp8_e9; it takes fp8"),
        ("vllm", "0.32.0", "--dtyp", "bf16", "refuses --dtyp=bf16; it takes bfloat16"),
        ("vllm", "0.32.0", "--runner", "x", "it takes auto or draft or generate or pooling"),
        ("vllm", "0.32.0", "--collect-detailed-traces", "model workr", "traces=workr; it takes worker"),
        ("sglang", "0.5.23", "--load-format", "safetensor", "--load-format=safetensor; it takes safetensors"),
        ("sglang", "0.5.23", "--tokenizer-mode", "fast", "it takes auto or slow"),
    ],
)  # fmt: skip
def test_a_value_that_the_parser_refuses_is_found_with_the_allowed_ones(engine, version, flag, value, words):
    (fault,) = flag_faults(engine, version, {flag: value})
    assert words in fault.words(engine, version)
    assert fault.certain


@pytest.mark.parametrize(
    ("engine", "version", "flag", "value"),
    [
        ("vllm", "0.32.0", "--dtype", "bfloat16"),
        ("vllm", "0.32.0", "--dtype", ""),
        ("vllm", "0.32.0", "--moe-backend", "FlashInfer-CUTLASS"),
        ("vllm", "0.32.0", "--collect-detailed-traces", "model worker"),
        ("vllm", "0.32.0", "--tool-call-parser", "my-own"),
        ("vllm", "0.32.0", "--compilation-config.mode", "x"),
        ("vllm", "0.28.0", "--dtype", "float99"),
        ("sglang", "0.5.20", "--dtype", "float99"),
        ("trtllm", "1.3.0rc12", "--backend", "x"),
    ],
)
def test_allowed_open_and_unknown_values_are_not_refused(engine, version, flag, value):
    assert flag_faults(engine, version, {flag: value}) == ()


@pytest.mark.parametrize("version", ["b11434", "11434", "11434.0.0"])
def test_a_build_of_llama_cpp_has_its_own_flags(version):
    assert found("--ubatch-size", "--load-mode", "-ngl", engine="llama.cpp", version=version) == []
    ((flag, _, certain),) = found("--no-mmap", engine="llama.cpp", version=version)
    assert (flag, certain) == ("--no-mmap", True)
