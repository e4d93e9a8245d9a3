import math

import pytest

from sparkfleet.engines.failure_signatures import (
    LOW_BYTES,
    SIGNATURES,
    Cause,
    Diagnosis,
    Failure,
    classify,
    first_cause,
)
from sparkfleet.errors import SpecError
from sparkfleet.knowledge.rules.rules import load_book

EXAMPLES = [(one, line) for one in SIGNATURES.content.signatures for line in one.examples]


def failed(*lines, engine="vllm", method="none", **fields):
    return Failure(engine=engine, method=method, log=lines, **fields)


@pytest.mark.parametrize(
    ("signature", "line"), EXAMPLES, ids=[f"{one.id}-{len(line)}" for one, line in EXAMPLES]
)
def test_every_example_is_recognised_by_its_signature(signature, line):
    engine = (signature.engines or ("vllm",))[0]
    method = (signature.methods or ("none",))[0]
    context = {
        "SemLock|synchronize\\.py": "  in SemLock._rebuild",
        "fastsafetensors": "import fastsafetensors",
    }
    before = (context[signature.context],) if signature.context else ()
    found = classify(failed("starting", *before, line, engine=engine, method=method))
    assert (found.signature, found.cause, found.rule) == (signature.id, signature.cause, signature.rule)
    assert found.evidence == line.strip()


def test_every_issue_that_a_signature_names_is_there():
    book = load_book()
    known = {rule.id for rule in book.rules} | dict(book.not_rules).keys()
    assert {one.rule for one in SIGNATURES.content.signatures if one.rule} <= known


LOADED = "[2026-06-01 08:00:00 TP0] Load weight end. type=Qwen3_5ForCausalLM, dtype=torch.bfloat16, avail mem=21.73 GB"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("failure", "cause", "rule"),
    [
        (failed(OOM, engine="sglang", method="nextn"), Cause.KNOWN, "sglang-eagle-prealloc-oom"),
        (failed(LOADED, OOM, engine="sglang", method="nextn"), Cause.MEMORY, ""),
        (failed(OOM, engine="sglang", method="ngram"), Cause.MEMORY, ""),
        (failed("TypeError: '>' not supported between instances of 'NoneType' and 'int'"), Cause.UNKNOWN, ""),
        (failed("Connection reset by peer", OOM), Cause.MEMORY, ""),
        (failed("FileNotFoundError: [Errno 2] No such file or directory"), Cause.MISSING, ""),
        (failed(exit_code=-9), Cause.UNKNOWN, ""),
        (failed(exit_code=-9, memory_low=LOW_BYTES - 1), Cause.MEMORY, ""),
        (failed("Connection reset by peer", exit_code=1, out_of_memory=True), Cause.MEMORY, ""),
        (failed(OOM, engine="sglang", method="nextn", out_of_memory=True), Cause.KNOWN, "sglang-eagle-prealloc-oom"),
        (failed("loading", exit_code=1, memory_low=40 * LOW_BYTES), Cause.UNKNOWN, ""),
        (failed(exit_code=127), Cause.MISSING, ""),
        (failed(exit_code=0), Cause.UNKNOWN, ""),
        (failed("compiling"), Cause.UNKNOWN, ""),
        (failed(), Cause.UNKNOWN, ""),
    ],
)  # fmt: skip
def test_the_cause_of_a_failure(failure, cause, rule):
    found = classify(failure)
    assert (found.cause, found.rule) == (cause, rule)


@pytest.mark.parametrize(
    "note",
    [
        "(EngineCore pid=71) WARNING 11-20 10:00:00 [interface.py:2] Failed to import from vllm._C: ImportError: libcudart",
        "INFO 11-20 10:00:00 [importing.py:17] Triton is not available: ModuleNotFoundError: No module named 'triton'",
        "[2026-06-01 08:00:00] Ignore import error when loading sglang.srt.models.x: ImportError: cannot import name 'y'",
    ],
)  # fmt: skip
def test_a_package_that_an_engine_does_without_is_not_the_cause_of_its_end(note):
    port = "OSError: [Errno 98] Address already in use"
    assert classify(failed(note, port)).cause is Cause.PORT
    assert classify(failed(note, "ValueError: unexpected", exit_code=1)).evidence == "ValueError: unexpected"
    fatal = "(EngineCore pid=71) ERROR 11-20 10:00:01 [core.py:9] ImportError: libcudart.so.12: cannot open shared object"
    assert classify(failed(note, fatal)).evidence == fatal


FROZEN = "CustomAllreduce is disabled because this process group spans across nodes."


def test_a_sign_for_the_end_of_a_log_counts_only_there():
    hangs = classify(failed("init", FROZEN, engine="sglang"))
    went_on = classify(failed(FROZEN, *["loading"] * 9, engine="sglang"))
    assert hangs.rule == "sglang-2node-nccl-init-freeze"
    assert went_on.cause is Cause.UNKNOWN


def test_a_missing_line_is_no_sign_after_a_rank_has_served():
    """The line of the loaded weights is no longer in the end of the log that is read."""
    short = {"engine": "sglang", "method": "nextn"}
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 510.00 MiB."
    assert classify(failed(line, **short)).rule == "sglang-eagle-prealloc-oom"
    served = classify(failed(line, **short, served=True))
    assert (served.cause, served.rule) == (Cause.MEMORY, "")


def test_without_a_sign_the_last_line_that_looks_like_an_error_is_evidence():
    found = classify(failed("boom: SomeError: no", "bye", exit_code=3))
    assert found.evidence == "boom: SomeError: no"
    assert str(found) == "It ended with exit code 3."


def test_a_hostile_log_costs_little_and_prints_nothing_odd():
    noise = ["\x1b[31m" + "a" * 100_000 + "error" for _ in range(3000)]
    found = classify(failed(*noise, "\x1b]0;owned\x07 fatal: \x00x", exit_code=1))
    assert found.cause is Cause.UNKNOWN
    assert found.evidence == "]0;owned fatal: x"


def test_the_rank_that_explains_the_others_is_the_cause_of_a_group():
    gone = classify(failed("Connection closed by peer"))
    full = classify(failed(OOM))
    unknown = classify(failed(exit_code=0))
    assert first_cause([unknown, gone, full]) is full
    assert first_cause([unknown, gone]) is gone


def test_a_rank_that_lost_its_gpu_comes_before_the_ranks_that_lost_it():
    peer = classify(failed("RuntimeError: Connection closed by peer [192.168.100.11]:41822"))
    lost = classify(failed("torch.AcceleratorError: CUDA error: unspecified launch failure"))
    assert first_cause([peer, lost]) is first_cause([lost, peer]) is lost
    assert lost.again
    assert not lost.lasts_s, "after a reboot the same candidate serves again"


def test_the_end_of_a_log_that_sound_starts_have_hides_no_cause_of_another_rank():
    """The line is printed by each start over two nodes; the candidate was excluded for ever."""
    frozen = classify(failed(FROZEN, engine="sglang"))
    for other in (failed(OOM, engine="sglang"), failed("ncclRemoteError", engine="sglang")):
        assert first_cause([frozen, classify(other)]) == classify(other)
    assert first_cause([classify(failed(exit_code=-9, engine="sglang")), frozen]) is frozen


def test_a_line_that_vllm_prints_each_minute_while_others_load_is_no_lost_connection():
    line = "INFO No available shared memory broadcast block found in 60 seconds. This typically happens when others load."
    found = classify(failed(line, "AssertionError: no", exit_code=1))
    assert found.cause is Cause.UNKNOWN


def test_only_what_passes_by_itself_is_tried_again_as_it_is():
    assert [one for one in Cause if Diagnosis(cause=one, summary="").again] == [
        Cause.PORT,
        Cause.AWAY,
        Cause.TOOL,
        Cause.TRANSIENT,
    ]


def test_only_lasting_causes_exclude_a_candidate_and_only_its_own_for_ever():
    lasts = {one: Diagnosis(cause=one, summary="").lasts_s for one in Cause}
    assert [one for one in Cause if lasts[one] == 0] == [Cause.PORT, Cause.TOOL, Cause.TRANSIENT]
    assert [one for one in Cause if lasts[one] == math.inf] == [Cause.KNOWN, Cause.FLAG]


@pytest.mark.parametrize("cause", [Cause.MEMORY, Cause.MISSING, Cause.UNKNOWN])
def test_an_incomplete_start_excludes_no_candidate(cause):
    assert Diagnosis(cause=cause, summary="", began=False).lasts_s == 0


ENTRY = "version: 1\nsignatures:\n- {id: a, cause: %s, pattern: '%s', summary: s, examples: [abcd]%s}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "engines/signatures.yaml:"),
        ("version: 2", "expected `version: 1`"),
        (ENTRY % ("known", "abcd", ""), "a: .*a known issue needs a rule"),
        (ENTRY % ("odd", "abcd", ""), "a: cause: "),
        (ENTRY % ("memory", "ab(cd", ""), "a: pattern: .*no regular expression"),
        (ENTRY % ("memory", "abcd", ", odd: 1"), "a: odd: "),
        (ENTRY % ("memory", "abcd", "") + ENTRY.splitlines()[2] % ("port", "abcd", ""), "a: id: is given twice"),
        ("version: 1\nsignatures: [1]", "0.: entry: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_reported_by_entry_and_field(text, says):
    with pytest.raises(SpecError, match=says):
        SIGNATURES.read(text)


def test_an_entry_is_all_it_takes():
    mine = SIGNATURES.read(ENTRY % ("flag", "abcd", "")).signatures
    assert classify(failed("x abcd y"), mine) == Diagnosis(
        cause=Cause.FLAG, signature="a", summary="s", evidence="x abcd y"
    )
