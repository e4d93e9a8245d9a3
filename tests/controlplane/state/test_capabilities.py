import pytest
from control_values import plan

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.controlplane.state.capabilities import (
    group_entry,
    measured_of,
    tools_of,
    vision_of,
    weights_of,
)
from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.gateway.routing_table import GroupEntry
from sparkfleet.perf.prediction import Band, Prediction
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.specs.deployment import Deployment


def candidate(engine="vllm", model="org/model", *args, **fields):
    fields = {"context": 8192, "concurrency": 8, **fields}
    return Candidate(
        model=model,
        shape=GroupShape(nodes=("spark1",)),
        engine=engine,
        engine_version="",
        engine_args=args,
        **fields,
    )


@pytest.mark.parametrize(
    ("engine", "tower", "args", "sees"),
    [
        ("vllm", True, (), True),
        ("vllm", False, (), False),
        ("vllm", None, (), None),
        ("sglang", True, (), True),
        ("trtllm", True, (), None),
        ("trtllm", False, (), False),
        ("vllm", True, ("--language-model-only",), False),
        ("vllm", None, ("--language-model-only",), False),
        ("vllm", True, ("--limit-mm-per-prompt", '{"image": 0, "video": 0}'), False),
        ("vllm", True, ('--limit-mm-per-prompt={"image":0}',), False),
        ("vllm", True, ("--limit-mm-per-prompt", '{"image": 4}'), True),
        ("vllm", True, ("--limit-mm-per-prompt", "image=0"), True),
        ("vllm", True, ("--limit-mm-per-prompt", "[" * 5000), True),
    ],
)
def test_a_tower_that_is_there_may_be_left_out(engine, tower, args, sees):
    assert vision_of(candidate(engine, "org/model", *args), tower) is sees


@pytest.mark.parametrize(
    ("mmproj", "tower", "args", "sees"),
    [
        ("mmproj-F16.gguf", True, (), True),
        ("mmproj-F16.gguf", None, (), None),
        ("mmproj-F16.gguf", False, (), False),
        ("mmproj-F16.gguf", True, ("--no-mmproj",), False),
        ("", True, (), False),
        ("", None, (), False),
    ],
)
def test_the_tower_of_a_gguf_checkpoint_is_a_file_of_its_own(mmproj, tower, args, sees):
    one = candidate("llama.cpp", "org/model", *args, gguf=GgufFiles(model="m.gguf", mmproj=mmproj))
    assert vision_of(one, tower) is sees


PARSER = ("--tool-call-parser", "hermes")


@pytest.mark.parametrize(
    ("engine", "model", "family", "args", "reads"),
    [
        ("vllm", "Qwen/Qwen3.6-27B-FP8", "qwen3_5", (), True),
        ("sglang", "Qwen/Qwen3.6-27B-FP8", "", (), True),
        ("vllm", "org/model", "llama", (), False),
        ("vllm", "org/model", "llama", PARSER, False),
        ("vllm", "org/model", "llama", (*PARSER, "--enable-auto-tool-choice"), True),
        ("vllm", "org/model", "llama", ("--tokenizer-mode", "mistral"), None),
        ("vllm", "org/model", "mistral3", (), None),
        ("vllm", "/models/mine", "gpt_oss", (), None),
        ("vllm", "/models/mine", "", (), None),
        ("sglang", "org/model", "llama", (), None),
        ("sglang", "org/model", "llama", PARSER, True),
        ("trtllm", "openai/gpt-oss-120b", "gpt_oss", (), None),
        ("trtllm", "org/model", "llama", ("--tool-parser", "qwen3"), True),
        ("llama.cpp", "org/model-GGUF:Q4_K_M", "llama", (), None),
        ("llama.cpp", "org/model-GGUF:Q4_K_M", "llama", ("--no-jinja",), False),
        ("llama.cpp", "org/model-GGUF:Q4_K_M", "llama", ("--skip-chat-parsing",), False),
    ],
)
def test_calls_are_read_where_there_is_a_parser(engine, model, family, args, reads):
    assert tools_of(candidate(engine, model, *args), family) is reads


def desired(spec, made):
    return Desired(spec=spec, plan=made, generation=1, who="me", since=0.0)


def test_a_group_is_told_as_its_rung_is():
    made = plan()
    (group,) = made.groups
    lower = group.choice.candidate.model_copy(update={"context": 256, "engine_args": PARSER})
    ladder = (group.choice, group.choice.model_copy(update={"candidate": lower}))
    made = made.model_copy(
        update={"groups": (group.model_copy(update={"ladder": ladder, "vision": False, "family": "qwen3"}),)}
    )
    wanted = desired(Deployment(name="tiny", model="builtin:tiny"), made)
    mark = weights_of(group.choice.candidate, 1)
    top = GroupEntry(app="a", vision=False, tools=False, context=512, concurrency=4, weights=mark)
    assert group_entry("a", wanted, 0, 0) == top
    assert group_entry("a", wanted, 0, 1) == top.model_copy(update={"context": 256})
    assert group_entry("a", wanted, 0, 7) == group_entry("a", wanted, 0, 1)


def test_groups_have_the_same_mark_if_their_tokens_are_the_same():
    """Of another generation the files may be others, and only vLLM returns ids of tokens."""
    candidate = plan().groups[0].choice.candidate.model_copy(update={"engine": "vllm"})
    mark = weights_of(candidate, 1)
    assert mark == weights_of(candidate.model_copy(update={"context": 64, "concurrency": 1}), 1) != ""
    for change in (
        {"model": "builtin:other"},
        {"quant": "fp8"},
        {"kv_dtype": "fp8"},
        {"engine_version": "9"},
    ):
        assert weights_of(candidate.model_copy(update=change), 1) != mark
    assert weights_of(candidate, 2) != mark
    assert weights_of(candidate.model_copy(update={"engine": "sglang"}), 1) == ""


@pytest.mark.parametrize(
    ("fields", "context", "concurrency"),
    [({}, None, None), ({"context": 4096, "concurrency": 2}, 4096, 2)],
)
def test_of_a_workload_of_its_own_only_what_is_declared_is_known(fields, context, concurrency):
    spec = Deployment.model_validate(
        {
            "name": "tts",
            "model": "org/tts",
            "engine": "custom",
            "memory": "1 GiB",
            "image": "localhost/tts:latest",
            "port": 5005,
            **fields,
        }
    )
    made = plan("tts", **{"context": 0, "concurrency": 1, **fields})
    (group,) = made.groups
    own = group.choice.model_copy(
        update={"candidate": group.choice.candidate.model_copy(update={"engine": "custom"})}
    )
    made = made.model_copy(update={"groups": (group.model_copy(update={"ladder": (own,), "vision": False}),)})
    assert group_entry("a", desired(spec, made), 0, 0) == GroupEntry(
        app="a", context=context, concurrency=concurrency
    )


@pytest.mark.parametrize(
    ("expected", "measured", "ratio"),
    [(20.0, 25.0, 1.25), (20.0, None, None), (20.0, 0.0, None), (0.0, 25.0, None), (None, 25.0, None)],
)
def test_the_speed_of_a_start_counts_if_it_was_predicted_and_measured(expected, measured, ratio):
    none = Band(low=0.0, mid=0.0, high=0.0)
    check = None if expected is None else none.model_copy(update={"mid": expected})
    assert measured_of(Prediction(memory_bytes_per_rank=none, check_decode_tps=check), measured) == ratio
