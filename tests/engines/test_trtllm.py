import re
import shutil
import subprocess

import pytest
import yaml

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.engines.trtllm import KEYS_IN_CONTAINER
from sparkfleet.errors import EngineError
from sparkfleet.knowledge.engines.method_support import names_of

TRTLLM = engine_by_name("trtllm")


@pytest.fixture
def launch(candidate, context):
    def launch(rank=0, *, where=None, **fields):
        told = {
            "engine": "trtllm",
            "runtime": "container",
            "image": "i@sha256:0",
            "engine_version": "1.3.0rc12",
        }
        one = candidate(**{**told, **fields})
        more = {"keys_dir": "/state/keys"} if one.shape.ranks > 1 else {}
        return TRTLLM.launch(one, context(rank, one.shape.ranks, **{**more, **(where or {})}))

    return launch


def files(one):
    return {file.name: file.text for file in one.files}


def options(one):
    return yaml.safe_load(files(one)["options.yaml"])


EAGLE = {"method": "eagle3", "draft": "nvidia/e", "where": {"draft_path": "/models/d"}}


def test_one_spark_with_eagle_as_in_the_playbook(launch):
    one = launch(tokens=5, concurrency=1, context=4096, **EAGLE)
    assert one.argv == (
        "trtllm-serve", "/models/m", "--backend", "pytorch", "--tp_size", "1",
        "--max_batch_size", "1", "--max_seq_len", "4096",
        "--extra_llm_api_options", "/run/sparkfleet/options.yaml",
        "--host", "127.0.0.1", "--port", "4321",
    )  # fmt: skip
    told = options(one)
    assert told["speculative_config"] == {
        "decoding_type": "Eagle", "max_draft_len": 5, "speculative_model_dir": "/models/d"
    }  # fmt: skip
    assert told["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.9, "max_tokens": 4128, "enable_block_reuse": False
    }  # fmt: skip
    assert told["cuda_graph_config"] == {"max_batch_size": 1}
    unset = ("enable_attention_dp", "disable_overlap_scheduler", "enable_autotuner", "enable_chunked_prefill")
    assert [told[name] for name in unset] == [False] * 4


def test_a_draft_model_as_in_the_playbook(launch):
    told = options(launch(method="draft", tokens=4, draft="nvidia/small"))
    assert told["disable_overlap_scheduler"] is True
    assert told["speculative_config"] == {
        "decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "nvidia/small"
    }  # fmt: skip
    assert told["kv_cache_config"]["enable_block_reuse"] is False


def test_without_speculation_nothing_of_it(launch):
    told = options(launch(kv_dtype="fp8"))
    assert "speculative_config" not in told
    assert "disable_overlap_scheduler" not in told
    assert told["kv_cache_config"]["dtype"] == "fp8"


def test_heads_of_the_checkpoint(launch):
    assert options(launch(method="mtp", tokens=3))["speculative_config"] == {
        "decoding_type": "MTP", "num_nextn_predict_layers": 3
    }  # fmt: skip


def test_prompt_lookup_does_not_overlap(launch):
    told = options(launch(method="ngram", tokens=4))
    assert told["speculative_config"] == {"decoding_type": "NGram", "max_draft_len": 4}
    assert told["disable_overlap_scheduler"] is True


DOCUMENTED = {"DraftTarget", "DFlash", "DSpark", "Eagle", "Eagle3", "MTP", "NGram", "PARD", "SA"}
"""`decoding_type` in the options file of `trtllm-serve` (features/speculative-decoding.md; pull request 15808)."""


def test_every_method_has_a_name_that_is_documented():
    assert set(names_of("trtllm").values()) <= DOCUMENTED


def test_a_method_that_it_has_not_is_refused(launch):
    with pytest.raises(EngineError, match='"dflash2"'):
        launch(method="dflash2", tokens=3, draft="o/d", engine_version="1.4.0")
    with pytest.raises(EngineError, match=r'"dspark": it came with 1\.3\.0rc27'):
        launch(method="dspark", tokens=3, draft="o/d", engine_version="1.3.0rc13")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"method": "dflash", "tokens": 7, "draft": "o/d"},
            {"decoding_type": "DFlash", "max_draft_len": 7, "speculative_model_dir": "o/d"},
        ),
        (
            {"method": "dspark", "tokens": 7, "draft": "o/d"},
            {"decoding_type": "DSpark", "max_draft_len": 7, "speculative_model_dir": "o/d"},
        ),
        (
            {"method": "dspark", "tokens": 5},
            {"decoding_type": "DSpark", "max_draft_len": 5, "speculative_model_dir": "/models/m"},
        ),
        (
            {"method": "eagle3", "tokens": 5, "draft": "o/d", "busy": 2, "busy_from": 3, "concurrency": 8},
            {
                "decoding_type": "Eagle", "draft_len_schedule": {2: 5, 8: 2}, "max_draft_len": 5,
                "speculative_model_dir": "o/d",
            },
        ),
    ],
)  # fmt: skip
def test_drafts_of_today(launch, fields, expected):
    assert options(launch(engine_version="1.3.0rc27", **fields))["speculative_config"] == expected


def test_as_a_process_its_program_is_beside_the_interpreter(launch):
    one = launch(runtime="process")
    assert one.argv[0] == "/venv/bin/trtllm-serve"
    assert "/state/r/options.yaml" in one.argv


def test_gpt_oss_finds_its_encodings_offline(launch):
    one = launch(where={"encodings_dir": "/state/tiktoken"})
    assert dict(one.env)["TIKTOKEN_ENCODINGS_BASE"] == "/state/tiktoken"
    assert "/state/tiktoken" in [mount.target for mount in one.mounts]


def test_it_asks_for_no_token(launch):
    assert launch().token_env == ""


# --- two Sparks -------------------------------------------------------------------------------------------------------

TWO = {"nodes": 2, "tokens": 3, "batch_tokens": 1024, "concurrency": 1, "context": 2048, **EAGLE}


@pytest.fixture
def pair(launch):
    where = {"keys_dir": "/state/keys", "draft_path": "/models/d"}
    told = {**TWO, "where": where, "env": (("CPATH", "/usr/local/cuda/include"), ("HF_TOKEN", "hf_secret"))}
    return [launch(rank, **told) for rank in (0, 1)]


def test_the_leader_starts_all_ranks_and_a_worker_lets_it_in(pair):
    leader, worker = pair
    assert leader.argv == (
        "bash", "/run/sparkfleet/leader.sh", "29500",
        "trtllm-serve", "/models/m", "--backend", "pytorch", "--tp_size", "2",
        "--max_batch_size", "1", "--max_seq_len", "2048", "--max_num_tokens", "1024",
        "--extra_llm_api_options", "/run/sparkfleet/options.yaml",
        "--host", "192.168.100.11", "--port", "4321",
    )  # fmt: skip
    assert worker.argv == ("bash", "/run/sparkfleet/worker.sh", "29500")
    assert (leader.serves, worker.serves) == (True, False)
    assert files(leader)["options.yaml"] == files(worker)["options.yaml"]


def test_mpirun_goes_over_the_rail_with_the_groups_own_key(pair):
    script = files(pair[0])["leader.sh"]
    assert "-np 2 -H 192.168.100.11:1,192.168.100.12:1 --map-by ppr:1:node --bind-to none" in script
    assert "--mca btl_tcp_if_include 192.168.100.8/29 --mca oob_tcp_if_include 192.168.100.8/29 " in script
    assert "StrictHostKeyChecking=yes" in script
    assert "ConnectionAttempts=600" in script, "a container may be up before the other"
    assert "29500" not in "".join(text for one in pair for text in files(one).values()), (
        "no port is in a file"
    )
    assert 'bash /run/sparkfleet/rank.sh "$@"' in script
    assert "ListenAddress=192.168.100.12" in files(pair[1])["worker.sh"]
    assert {mount.target for one in pair for mount in one.mounts} >= {"/run/sparkfleet-keys"}


@pytest.mark.parametrize("address", ["spark2.local", "fd00::2"])
def test_addresses_that_mpi_cannot_use_are_refused(launch, address):
    """In a ring ranks meet on the management network, where a node may be known by its name."""
    with pytest.raises(EngineError, match="needs IPv4 addresses, and " + re.escape(address)):
        launch(**{**TWO, "where": {"peers": ("192.168.100.11", address)}})


def test_a_rank_has_the_variables_of_its_own_container(pair, tmp_path):
    """The container's variables are restored in `rank.sh`, which a login over SSH starts without them."""
    first, second = (files(one)["rank.sh"] for one in pair)
    assert first == second
    assert dict(pair[1].env)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    for name in ("leader.sh", "worker.sh"):
        text = next(files(one)[name] for one in pair if name in files(one))
        assert "export -p > /run/sparkfleet-ssh/environment" in text
    (tmp_path / "environment").write_text('declare -x A="it\'s \\$1"\n')
    (tmp_path / "trtllm-llmapi-launch").write_text('#!/bin/bash\necho "$A" "$@"\n')
    (tmp_path / "trtllm-llmapi-launch").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", first.replace("/run/sparkfleet-ssh", str(tmp_path)), "rank.sh", "trtllm-serve", "/m"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"it's \$1 bash /run/sparkfleet/serve\.sh [0-9]+ trtllm-serve /m\n", done.stdout)


def test_a_server_that_fails_ends_its_waiting_launcher(pair, tmp_path):
    """As `trtllm-llmapi-launch` runs it: in its background, while it waits in the foreground."""
    (tmp_path / "serve.sh").write_text(files(pair[0])["serve.sh"])
    (tmp_path / "environment").touch()
    (tmp_path / "trtllm-llmapi-launch").write_text('#!/bin/bash\n"$@" &\nsleep 60\n')
    (tmp_path / "trtllm-llmapi-launch").chmod(0o755)
    script = files(pair[0])["rank.sh"].replace("/run/sparkfleet-ssh", str(tmp_path))
    done = subprocess.run(
        ["bash", "-c", script.replace("/run/sparkfleet/", f"{tmp_path}/"), "rank.sh", "bash", "-c", "exit 3"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        start_new_session=True,  # MPI gives each of its processes a group of its own
    )
    assert done.returncode == 1
    assert "The server has ended with exit code 3." in done.stderr


def test_variables_of_the_deployment_are_in_no_file(pair):
    texts = "".join(text for one in pair for text in files(one).values())
    assert "hf_secret" not in texts


INSTALLS = re.compile(r"\b(apt(-get)?|dnf|yum|apk|pip3?|uv|conda|npm|cargo|curl|wget|git)\b")


@pytest.mark.parametrize("name", ["leader.sh", "rank.sh", "serve.sh", "worker.sh"])
def test_no_script_installs_or_downloads_anything(pair, name):
    """A container runs the content that its digest names."""
    text = next(files(one)[name] for one in pair if name in files(one))
    assert not INSTALLS.findall(text)


@pytest.mark.parametrize(("rank", "name", "program"), [(0, "leader.sh", "ssh"), (1, "worker.sh", "sshd")])
def test_an_image_without_openssh_fails_with_that_reason(pair, tmp_path, rank, name, program):
    keys = tmp_path / "keys"
    keys.mkdir()
    for file in ("id_ed25519", "id_ed25519.pub"):
        (keys / file).write_text("key")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "install", "sed"):
        (tools / tool).symlink_to(shutil.which(tool))
    script = files(pair[rank])[name].replace("/run/sparkfleet-ssh", str(tmp_path / "keep"))
    script = script.replace(KEYS_IN_CONTAINER, str(keys)).replace("/run/sshd", str(tmp_path / "sshd"))
    done = subprocess.run(
        [shutil.which("bash"), "-c", script, name, "4000", "trtllm-serve"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 127
    assert f"{program}: command not found. TensorRT-LLM over several nodes needs openssh" in done.stderr


@pytest.mark.parametrize("name", ["leader.sh", "rank.sh", "serve.sh", "worker.sh"])
def test_every_script_is_one_for_bash(pair, name):
    text = next(files(one)[name] for one in pair if name in files(one))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_processes_over_several_nodes_are_refused(launch):
    with pytest.raises(EngineError, match="containers only"):
        launch(nodes=2, runtime="process")


def test_a_group_without_keys_is_refused(launch):
    with pytest.raises(EngineError, match="key pair"):
        launch(nodes=2, where={"keys_dir": ""})
