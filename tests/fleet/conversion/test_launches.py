"""Launch lines in the forms in which people have them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkfleet.errors import SpecError
from sparkfleet.fleet.conversion.launches import launches_in, unset_names

SCRIPT = """#!/bin/bash
set -e
MODEL=${1:-"org/model"}
export VLLM_USE_THING=1
pip install -q something
ARGS=(--kv-cache-dtype fp8  # half of it
  --max-num-seqs 8)
vllm serve "$MODEL" --tensor-parallel-size 2 "${ARGS[@]}" > log 2>&1 &
"""
CONTAINER = """docker run -d --gpus all -v /models/m:/model -e A=1 vllm/vllm-openai:v0.20.0 --model /model --port 80"""
NESTED = """docker run --entrypoint /bin/bash -e MODEL=org/m img -c "apt-get install x && vllm serve \\$MODEL --port 80" """
COMPOSE = """
x-base: &base
  image: "ghcr.io/ggml-org/llama.cpp:${TAG:-server-cuda}"
services:
  small:
    <<: *base
    command: ["-m", "/models/small.gguf", "--port", "8000"]
    volumes: ["./models:/models"]
  large:
    image: vllm/vllm-openai:latest
    environment: {VLLM_X: "1", EMPTY: null}
    command: >
      --model org/large
      --max-model-len 32768
  listed:
    image: sglang
    environment: [A=1, B]
    volumes:
      - {type: bind, source: /data, target: /models}
    entrypoint: python3 -m sglang.launch_server
    command: --model-path /models/x
  web:
    image: open-webui
"""
RECIPE = """
recipe_version: "2"
name: Mine
model: org/model
container: image:latest
mods: [mods/fix-template]
defaults: {port: 8000, tensor_parallel: 2, config: '{"method": "mtp", "num_speculative_tokens": 2}'}
env: {VLLM_X: "1", JSON: '{"SPREAD": 1}'}
command: |
  vllm serve {model} --port {port} -tp {tensor_parallel} \\
    --speculative-config '{config}'
"""
UNIT = """[Unit]
Description=llama
[Service]
Environment="A=1 2" B=3
ExecStart=/usr/bin/llama-server -m /models/m.gguf \\
  --alias mine
Restart=always
"""
TWO_RANKS = """
ssh spark1 vllm serve org/m -tp 2 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1
ssh spark2 vllm serve org/m -tp 2 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --headless
"""


def one(text, **variables):
    (found,) = launches_in(text, variables)
    return found


def test_a_script():
    found = one(SCRIPT)
    assert (found.line.engine, found.line.positional, found.env) == (
        "vllm",
        ("org/model",),
        {"VLLM_USE_THING": "1"},
    )
    assert [flag.plain for flag in found.line.flags] == [
        "--tensor-parallel-size",
        "--kv-cache-dtype",
        "--max-num-seqs",
    ]
    assert found.notes == ("it also runs `pip install …`: the image has to contain what that does",)


def test_options_of_other_commands_are_not_shown():
    """They may be secrets."""
    (note,) = one("wget --header='Authorization: Bearer hf_secret' https://x\nvllm serve org/m").notes
    assert "`wget …`" in note
    assert "hf_secret" not in note


def test_a_container_and_its_image():
    found = one(CONTAINER)
    assert (found.line.engine, found.image, found.env) == ("vllm", "vllm/vllm-openai:v0.20.0", {"A": "1"})
    assert found.mounts == {"/model": "/models/m"}


def test_a_shell_in_a_container_has_its_variables():
    found = one(NESTED)
    assert (found.line.positional, found.image) == (("org/m",), "img")
    assert "`apt-get install x`" in found.notes[0]


def test_a_shell_that_runs_its_arguments():
    assert one("""sh -c 'umask 0; exec "$@"' sh vllm serve org/m""").line.positional == ("org/m",)


def test_services_of_a_compose_file():
    small, large, listed = launches_in(COMPOSE, {"TAG": "full"})
    assert (small.name, small.image, small.mounts) == (
        "small",
        "ghcr.io/ggml-org/llama.cpp:full",
        {"/models": "./models"},
    )
    assert (large.line.engine, large.line.first("--model"), large.env) == (
        "vllm",
        "org/large",
        {"VLLM_X": "1"},
    )
    assert (listed.line.engine, listed.env, listed.mounts) == ("sglang", {"A": "1"}, {"/models": "/data"})
    assert launches_in(COMPOSE, {})[0].image == "ghcr.io/ggml-org/llama.cpp:server-cuda"


def test_a_recipe():
    found = one(RECIPE)
    assert (found.name, found.image, found.line.positional) == ("Mine", "image:latest", ("org/model",))
    assert found.env == {"VLLM_X": "1", "JSON": '{"SPREAD": 1}'}
    assert found.line.first("--speculative-config") == '{"method": "mtp", "num_speculative_tokens": 2}'
    assert found.line.first("-tp") == "2"
    assert found.notes == ("it patches the image first (fix-template): the image has to contain that",)
    assert one(RECIPE, tensor_parallel="4").line.first("-tp") == "4"


def test_a_unit():
    found = one(UNIT)
    assert (found.line.first("--alias"), found.env) == ("mine", {"A": "1 2", "B": "3"})


def inspected(**config):
    config = {
        "Image": "vllm/vllm-openai:v0.31.0",
        "Env": [],
        "Entrypoint": ["vllm", "serve"],
        "Cmd": [],
        **config,
    }
    mounts = [{"Type": "bind", "Source": "/data", "Destination": "/models"}]
    return json.dumps([{"Name": "/mine", "Config": config, "Mounts": mounts}])


@pytest.mark.parametrize("entrypoint", [["vllm", "serve"], "vllm serve", None])
def test_a_container_that_exists(entrypoint):
    """podman 4 prints the entrypoint as one text."""
    config = '{"method": "mtp"}'
    found = one(
        inspected(
            Env=["PATH=/bin", "VLLM_X=1", "CUDA_VERSION=13"],
            Entrypoint=entrypoint,
            Cmd=["--model", "/models/m", "--speculative-config", config],
        )
    )
    assert (found.name, found.image, found.env) == ("mine", "vllm/vllm-openai:v0.31.0", {"VLLM_X": "1"})
    assert (found.line.first("--model"), found.line.first("--speculative-config")) == ("/models/m", config)
    assert found.mounts == {"/models": "/data"}


def test_a_shell_in_a_container_that_exists_has_all_its_variables():
    found = one(inspected(Env=["M=org/m"], Entrypoint=None, Cmd=["bash", "-c", "vllm serve $M"]))
    assert (found.line.positional, found.env) == (("org/m",), {})


def test_of_a_group_of_ranks_the_first_one():
    assert one(TWO_RANKS).line.first("--node-rank") == "0"


OWN_RANK = "vllm serve org/m -tp 2 --nnodes 2 --node-rank $RANK --master-addr $HEAD $HEADLESS"


@pytest.mark.parametrize(
    ("script", "variable"),
    [
        (f"RANK=$1\n{OWN_RANK.removesuffix(' $HEADLESS')}", "$RANK"),
        (f'RANK=$1\n[ "$RANK" != 0 ] && HEADLESS=--headless\n{OWN_RANK}', "$RANK"),
        (f'RANK="${{2}}"; if (( RANK > 0 )); then HEADLESS=--headless; fi\n{OWN_RANK}', "$RANK"),
        (OWN_RANK.replace("$RANK", "$1").removesuffix(" $HEADLESS"), "$1"),
        (OWN_RANK.removesuffix(" $HEADLESS"), "$RANK"),
    ],
)
def test_a_rank_that_nothing_sets_is_the_first(script, variable):
    found = one(script)
    assert found.line.first("--node-rank") == "0"
    assert found.assumptions == (
        f"{variable} = 0, the first rank: nothing sets it, and a group is read from its first rank",
    )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('if [ "$1" = head ]; then RANK=0; HEADLESS=; else RANK=1; HEADLESS=--headless; fi', "true"),
        ('RANK=0; if [[ "$1" == worker ]]; then RANK=1; HEADLESS=--headless; fi', "false"),
        ('case "$1" in head) RANK=0; HEADLESS=;; *) RANK=1; HEADLESS=--headless;; esac', "true"),
    ],
)
def test_branches_are_chosen_for_the_first_rank(text, result):
    found = one(f"{text}\n{OWN_RANK}")
    assert found.line.first("--node-rank") == "0"
    assert found.assumptions == (
        f"every condition whose variables nothing sets is {result}: so the script starts the first rank",
    )


def test_other_variables_of_the_same_argument_are_not_the_rank():
    script = (
        'M=org/m; while [ $# -gt 0 ]; do case "$1" in --model) M="$2";; --rank) RANK="$2";; esac; shift 2; done\n'
        "vllm serve $M --node-rank=${RANK}"
    )
    found = one(script)
    assert (found.line.positional, found.line.first("--node-rank")) == (("org/m",), "0")


def test_the_first_rank_by_a_test_of_the_argument_itself():
    found = one(f'RANK=$1; if [ "$1" != 0 ]; then HEADLESS=--headless; fi\n{OWN_RANK}')
    assert found.line.first("--node-rank") == "0"
    assert [words.partition(":")[0] for words in found.assumptions] == [
        "$RANK = 0, the first rank",
        "every condition whose variables nothing sets is false",
    ]


def test_a_given_rank_wins():
    script = f'RANK=$1\n[ "$RANK" != 0 ] && HEADLESS=--headless\n{OWN_RANK}'
    assert one(script, RANK="0").assumptions == ()
    with pytest.raises(SpecError, match="further rank: --node-rank is 1") as caught:
        launches_in(script, {"RANK": "1"})
    assert "Nothing sets $HEAD." in (caught.value.means or "")


def test_names_that_nothing_sets():
    script = 'CMD=$1\n[ -n "$X" ] && echo $X\ndocker run $IMAGE $CMD $(nproc)'
    assert unset_names(script, {}) == ("X", "IMAGE", "1")
    assert unset_names(script, {"CMD": "vllm serve org/m", "X": "1"}) == ("IMAGE",)
    compose = "services:\n  a:\n    image: ${IMAGE}\n    command: serve ${M:-org/m} $N\n"
    assert unset_names(compose, {}) == ("IMAGE", "N")


TYPED = {
    "NVIDIA's recipes": "docker run --rm -it -e A=1 -v /d:/m --entrypoint /bin/bash img:1",
    "a shell as the command": "docker run -it -e A=1 -v /d:/m img:1 bash -l",
    "the image's own shell": "docker run -it -e A=1 -v /d:/m img:1",
    "one that is entered": "docker run -d --name v -e A=1 -v /d:/m img:1 sleep infinity\ndocker exec -it v bash",
}


@pytest.mark.parametrize("begin", TYPED.values(), ids=TYPED)
def test_what_is_typed_into_a_container_runs_in_its_image(begin):
    script = (
        f"export HOST=1 A=0\n{begin}\nexport B=2\npip install x\nvllm serve /m/x\nexit\nvllm serve org/host"
    )
    found, on_host = launches_in(script, {})
    assert (found.line.positional, found.image, found.env) == (("/m/x",), "img:1", {"A": "1", "B": "2"})
    assert found.mounts == {"/m": "/d"}
    assert (on_host.line.positional, on_host.image) == (("org/host",), "")


def test_a_program_of_a_container_with_a_name_runs_in_its_image():
    begin = "docker run -d --name v -e A=1 vllm/vllm-openai:v1 sleep 1d\ndocker exec v ls /x"
    found = one(f"{begin}\ndocker exec -e B=2 v vllm serve org/m")
    assert (found.line.positional, found.image, found.env) == (
        ("org/m",),
        "vllm/vllm-openai:v1",
        {"A": "1", "B": "2"},
    )


def test_containers_beside_the_engine_are_not_its_image():
    script = (
        "docker run -d redis:7\ndocker run -d --entrypoint /bin/sh redis:7 -c 'sleep 1d'\nvllm serve org/m"
    )
    assert one(script).image == ""


def test_a_replaced_entrypoint_is_not_the_engine():
    assert launches_in("docker run --entrypoint /bin/bash vllm/vllm-openai:v1", {}) == ()
    assert launches_in("docker run --entrypoint /usr/bin/env vllm/vllm-openai:v1 python x.py", {}) == ()


def test_a_file_of_variables_is_not_read():
    assert one("docker run --env-file my.env vllm/vllm-openai --model org/m").notes == (
        "it reads variables from my.env, which was not read",
    )


@pytest.mark.parametrize("text", ["", "echo hi", "ollama run qwen3:8b", "services: {a: {image: nginx}}"])
def test_none(text):
    assert launches_in(text, {}) == ()


@pytest.mark.parametrize(
    "text", ["model: org/m\n", "command: [1]\n", "services: [\n", '[{"Config": ', "services:\n- a\n"]
)
def test_other_yaml_is_refused(text):
    with pytest.raises(SpecError):
        launches_in(text, {})


def test_a_text_nested_without_end_is_refused():
    with pytest.raises(SpecError, match="nested too deeply"):
        launches_in("a " + "${x:-" * 5000, {})


@given(
    st.lists(
        st.sampled_from(
            [
                "vllm",
                "serve",
                "docker",
                "run",
                "-e",
                "A=1",
                "bash",
                "-c",
                "'x",
                '"',
                "--",
                "$A",
                "\n",
                "-v",
                "a:b",
            ]
        ),
        max_size=12,
    )
)
def test_every_text_ends(words):
    for found in launches_in(" ".join(words), {}):
        assert found.line.engine == "vllm"
