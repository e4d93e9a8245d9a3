"""A launch line as a deployment: fields, arguments, and the reason for each part that is left out."""

import shlex

import pytest

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.conversion import converted
from sparkfleet.fleet.conversion.deployment_text import deployment_text
from sparkfleet.fleet.conversion.launches import launches_in
from sparkfleet.specs.load import parse_deployment

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def convert(text, directory="/srv"):
    (launch,) = launches_in(text, {})
    return converted(launch, directory)


def fields(text):
    found = dict(convert(text).fields)
    del found["name"], found["engine"]
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve org/m", {"model": "org/m"}),
        ("vllm serve org/m --revision abc", {"model": "org/m@abc"}),
        (
            "vllm serve org/m --max-model-len 32k --max-num-seqs=4 -tp 2 -pp 1",
            {"model": "org/m", "context": 32000, "concurrency": 4, "parallel": {"tp": 2}},
        ),
        ("vllm serve org/m --max_model_len auto -tp 1", {"model": "org/m", "parallel": {"tp": 1}}),
        (
            "vllm serve org/m --tensor-parallel-size 2 --enable-expert-parallel",
            {"model": "org/m", "parallel": {"tp": 2, "ep": 2}},
        ),
        ("vllm serve org/m --enable-expert-parallel", {"model": "org/m"}),
        (
            "sglang serve --model-path org/m --tp-size 2 --ep-size 2 --context-length 4096 --max-running-requests 4",
            {"model": "org/m", "context": 4096, "concurrency": 4, "parallel": {"tp": 2, "ep": 2}},
        ),
        (
            "trtllm-serve org/m --tp_size 2 --max_batch_size 4 --max_seq_len 4096 --max_num_tokens 1024",
            {
                "model": "org/m",
                "context": 4096,
                "concurrency": 4,
                "parallel": {"tp": 2},
                "engine_args": ["--max_num_tokens=1024"],
            },
        ),
        (
            "llama-server -hf org/m-GGUF:Q4_K_M -c 32768 -np 4 -fa on --temp -1",
            {
                "model": "org/m-GGUF:Q4_K_M",
                "context": 8192,
                "concurrency": 4,
                "engine_args": ["-fa", "on", "--temp", "-1"],
            },
        ),
        (
            "llama-server -hf org/m:Q8_0 -c 32768 -np 4 -kvu",
            {"model": "org/m:Q8_0", "context": 32768, "concurrency": 4},
        ),
        ("llama-server -m /models/m.gguf -c 0", {"model": "/models/m.gguf"}),
        ("llama-server -m models/m.gguf", {"model": "/srv/models/m.gguf"}),
        ("vllm serve ./m", {"model": "/srv/m"}),
        ("vllm serve /hub/models--org--m/snapshots/main", {"model": "org/m"}),
        (f"vllm serve /hub/models--org--m/snapshots/{COMMIT}/", {"model": f"org/m@{COMMIT}"}),
        (
            "docker run -v /data:/models img vllm serve /models/m --quantization fp8",
            {"model": "/data/m", "image": "img", "engine_args": ["--quantization=fp8"]},
        ),
        (
            "A=1 HF_TOKEN=hf_x vllm serve org/m --hf-overrides '{\"a\": 1}'",
            {"model": "org/m", "engine_args": ['--hf-overrides={"a": 1}'], "env": {"A": "1"}},
        ),
        (
            """vllm serve org/m --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'""",
            {"model": "org/m", "speculation": {"method": "mtp", "tokens": 2}},
        ),
        (
            """vllm serve org/m --speculative-config '{"method": "medusa"}'""",
            {"model": "org/m", "engine_args": ['--speculative-config={"method": "medusa"}']},
        ),
    ],
)
def test_fields(text, expected):
    assert fields(text) == expected


@pytest.mark.parametrize(
    ("text", "name", "aliases"),
    [
        ("vllm serve org/My-Model-8B", "my-model-8b", ()),
        ("vllm serve org/m --served-model-name small", "small", ()),
        ("vllm serve org/m --served-model-name org/m small gpt-4o", "small", ("org/m", "gpt-4o")),
        ("vllm serve org/m --served-model-name Big", "m", ("Big",)),
        ("llama-server -m /a/m-Q4_K_M.gguf -a one,two", "one", ("two",)),
    ],
)
def test_names(text, name, aliases):
    found = convert(text).deployment
    assert (found.name, found.aliases) == (name, aliases)


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--host 0.0.0.0", "listens on one address"),
        ("--port $PORT", "listens on one address"),
        ("--api-key secret", "answers the gateway alone"),
        ("--gpu-memory-utilization 0.9", "the plan sizes it"),
        ("--trust-remote-code", "`trust_remote_code: true`"),
        ("--chat-template my.jinja", "the model's own template"),
        ("--data-parallel-size 2", "a Spark has one GPU"),
        ("--distributed-executor-backend ray", "connects the ranks"),
        ("--hf-token hf_x", "a secret"),
        ("--max-num-seqs 256", "`concurrency: 256` would reserve memory"),
    ],
)
def test_what_is_managed_is_left_out_with_the_reason(flag, reason):
    found = convert(f"vllm serve org/m {flag}")
    (left,) = found.left_out
    assert left.what.startswith(flag.split()[0])
    assert reason in left.why
    assert dict(found.fields) == {"name": "m", "model": "org/m", "engine": "vllm"}


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("HF_TOKEN=hf_secret", "a secret"),
        ("MY_API_KEY=x", "a secret"),
        ("NCCL_SOCKET_IFNAME=x", "each rank"),
        ("CUDA_VISIBLE_DEVICES=0", "the GPU of a machine"),
        ("TRITON_CACHE_DIR=/x", "a cache"),
        ("X=$Y", "nothing sets its value, $Y"),
    ],
)
def test_variables_that_are_left_out(variable, reason):
    found = convert(f"{variable} vllm serve org/m")
    (left,) = found.left_out
    assert (left.what, "env" in found.fields) == (variable.partition("=")[0], False)
    assert reason in left.why
    assert "secret" not in deployment_text(found, "f").replace("a secret", "")


def test_variables_that_only_look_like_secrets_are_kept():
    assert fields("TOKENIZERS_PARALLELISM=false NCCL_DEBUG=INFO vllm serve org/m")["env"] == {
        "TOKENIZERS_PARALLELISM": "false",
        "NCCL_DEBUG": "INFO",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vllm serve", "names no model"),
        ("vllm serve $MODEL", 'the model is "$MODEL", and nothing sets MODEL'),
        ("vllm serve org/m -tp $(nproc)", "the output of a command"),
        ("vllm serve org/m --max-num-seqs lots", "not a whole number"),
        ("docker run $IMAGE vllm serve org/m", "nothing sets IMAGE"),
        ("vllm serve ~/m", "nothing sets HOME"),
        ("vllm serve 'a b'", "Expected a Hub id"),
    ],
)
def test_what_no_deployment_can_be_made_of(text, words):
    with pytest.raises(SpecError) as caught:
        convert(text)
    assert words in caught.value.what


def test_the_file_is_the_same_deployment_with_what_was_left_out():
    text = (
        "docker run -e A='x: #1' img vllm serve org/m -tp 2 --port 8000 --gpu-memory-utilization 0.9 "
        + shlex.join(["--speculative-config", '{"method": "mtp", "attention_backend": "B12X"}'])
    )
    found = convert(text)
    written = deployment_text(found, "run\n.sh")
    assert parse_deployment(written) == found.deployment
    assert written.splitlines()[0].startswith("# Made of a launch line in run")
    for line in (
        "parallel: {tp: 2}",
        "speculation: {method: mtp}",
        "#   --port: an engine listens on one address of its node, behind the gateway",
        "#   --gpu-memory-utilization=0.9: the plan sizes it for the memory of the nodes, `context` and `concurrency`",
        '#   attention_backend: "B12X": of the speculation; the plan sets what it needs besides',
    ):
        assert line in written.splitlines()
