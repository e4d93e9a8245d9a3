import ast
import json
import os
import subprocess

import pytest

from sparkfleet.engines.registry import engine_by_name
from sparkfleet.errors import Cause, EngineError

VLLM = engine_by_name("vllm")


@pytest.fixture
def launch(candidate, context):
    """On the CPU and alone, as a process, by default."""

    def launch(rank=0, *, where=None, **fields):
        one = candidate(**{"context": 512, "device": "cpu", **fields})
        return VLLM.launch(one, context(rank, one.shape.ranks, **(where or {})))

    return launch


def test_the_command_of_the_embedded_engine_word_for_word(launch):
    assert launch(dtype="float32", kv_cache_bytes=64 << 20).argv == (
        "/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server",
        "--model", "/models/m",
        "--served-model-name", "m",
        "--host", "127.0.0.1",
        "--port", "4321",
        "--middleware", "sparkfleet_guard.Guard", "--disable-fastapi-docs",
        "--max-model-len", "512",
        "--max-num-seqs", "4",
        "--dtype", "float32",
        "--disable-access-log-for-endpoints", "/health,/metrics",
        "--allowed-media-domains", "none.invalid",
        "--kv-cache-memory-bytes", "67108864",
        "--enforce-eager",
    )  # fmt: skip


def test_the_environment_of_the_embedded_engine_word_for_word(launch):
    assert launch().env == (
        ("HF_HUB_OFFLINE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0"),
        ("VLLM_DO_NOT_TRACK", "1"),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        ("OMP_NUM_THREADS", "1"),
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("PYTHONPATH", "/state/r"),
    )


def test_flags_of_the_user_come_last_and_win(launch, flags):
    argv = launch(engine_args=("--max-model-len", "99")).argv
    assert argv[-2:] == ("--max-model-len", "99")
    assert flags(argv)["--max-model-len"] == "99"


def test_the_token_is_named_and_not_given(launch):
    one = launch(env=(("X", "1"),))
    assert one.token_env == "VLLM_API_KEY"
    assert "--api-key" not in one.argv
    assert "VLLM_API_KEY" not in dict(one.env)
    assert dict(one.env)["X"] == "1"


def test_on_a_gpu_nothing_of_the_cpu_is_set(launch):
    one = launch(device="cuda", memory_fraction=0.8)
    assert "--enforce-eager" not in one.argv
    assert not any(name.startswith("VLLM_CPU") for name, _ in one.env)
    assert [file.name for file in one.files] == ["sparkfleet_guard.py"]


def test_the_guard_precedes_the_path_of_the_deployment(launch):
    assert dict(launch(env=(("PYTHONPATH", "/mine"),)).env)["PYTHONPATH"] == "/state/r:/mine"


def test_weight_files_are_read_whole_if_the_plan_has_the_memory_for_it(launch, flags):
    assert "--safetensors-load-strategy" not in flags(launch(device="cuda").argv)
    read = launch(device="cuda", mmap=False)
    assert flags(read.argv)["--safetensors-load-strategy"] == "eager"
    assert ("MALLOC_MMAP_THRESHOLD_", "131072") in read.env
    assert "MALLOC_MMAP_THRESHOLD_" not in dict(launch(device="cuda").env)


def test_media_come_from_the_allowed_hosts_only(launch, flags):
    allowed = launch(media_domains=("a.example", "b.example"))
    assert flags(allowed.argv)["--allowed-media-domains"] == "a.example b.example"


# --- as planned -------------------------------------------------------------------------------------------------------


def test_memory_and_kernels_are_the_plans(launch, flags):
    argv = launch(
        device="cuda", memory_fraction=0.87, kv_dtype="fp8", batch_tokens=2048, quant="gptq-int4"
    ).argv
    found = flags(argv)
    assert found["--gpu-memory-utilization"] == "0.87"
    assert found["--kv-cache-dtype"] == "fp8"
    assert found["--max-num-batched-tokens"] == "2048"
    assert found["--quantization"] == "gptq_marlin"


DRAFT = {"draft": "org/d", "where": {"draft_path": "/models/d"}}
EXTRA = {"speculative": (("moe_backend", "triton"), ("x", "7"))}


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"method": "ngram", "tokens": 4}, '"ngram","num_speculative_tokens":4'),
        ({"method": "mtp", "tokens": 3}, '"mtp","num_speculative_tokens":3'),
        ({"method": "mtp", "tokens": 3, **EXTRA}, '"mtp","num_speculative_tokens":3,"moe_backend":"triton","x":7'),
        ({"method": "dflash", "tokens": 3, **DRAFT}, '"dflash","model":"/models/d","num_speculative_tokens":3'),
        ({"method": "dflash2", "tokens": 7, **DRAFT}, '"dflash","model":"/models/d","num_speculative_tokens":7'),
        ({"method": "dspark", "tokens": 7, **DRAFT}, '"dspark","model":"/models/d","num_speculative_tokens":7'),
        ({"method": "dspark", "tokens": 5}, '"dspark","num_speculative_tokens":5'),
        ({"method": "dflash2", "tokens": 7, "busy": 5, "busy_from": 4, "concurrency": 8, **DRAFT},
         '"dflash","model":"/models/d","num_speculative_tokens":7,'
         '"num_speculative_tokens_per_batch_size":[[1,3,7],[4,8,5]]'),
        ({"method": "mtp", "tokens": 4, "busy": 2, "busy_from": 8, "concurrency": 4},
         '"mtp","num_speculative_tokens":4'),
        ({"method": "mtp", "tokens": 4, "busy": 2, "busy_from": 2, "engine_version": "0.23.0"},
         '"mtp","num_speculative_tokens":4'),
        ({"method": "eagle3", "tokens": 5, **DRAFT}, '"eagle3","model":"/models/d","num_speculative_tokens":5'),
        ({"method": "draft", "tokens": 4, **DRAFT}, '"draft_model","model":"/models/d","num_speculative_tokens":4'),
        ({"method": "draft", "tokens": 4, "draft": "o/d"}, '"draft_model","model":"o/d","num_speculative_tokens":4'),
    ],
)  # fmt: skip
def test_every_method_of_speculation(launch, flags, fields, config):
    assert flags(launch(**fields).argv)["--speculative-config"] == f'{{"method":{config}}}'


def test_without_speculation_there_is_no_flag_for_it(launch):
    assert "--speculative-config" not in launch().argv


def test_a_method_of_another_engine_is_refused(launch):
    with pytest.raises(EngineError, match='"nextn"') as caught:
        launch(method="nextn", tokens=3)
    assert "mtp" in caught.value.do


@pytest.mark.parametrize("version", ["0.19.0", "0.19.0+cpu"])
def test_a_method_that_came_later_is_refused_before_the_engine_does(launch, version):
    with pytest.raises(EngineError, match=r'"dflash": it came with 0\.20') as caught:
        launch(method="dflash", tokens=3, engine_version=version, **DRAFT)
    assert caught.value.because is Cause.FLAG


@pytest.mark.parametrize(
    ("method", "version", "since"),
    [("dflash2", "0.27.1", "0.28"), ("dspark", "0.24.0", "0.25")],
)
def test_parallel_drafts_are_refused_of_releases_before_them(launch, method, version, since):
    with pytest.raises(EngineError, match=rf'"{method}": it came with {since}'):
        launch(method=method, tokens=7, engine_version=version, **DRAFT)


def test_an_image_that_was_seen_with_a_method_is_taken_at_that(launch):
    told = {
        "runtime": "container",
        "image": "ghcr.io/anemll/dspark-vllm-gx10:0.1.1",
        "engine_version": "0.24.0",
    }
    assert "--speculative-config" in launch(method="dspark", tokens=5, **told).argv


@pytest.mark.parametrize("version", ["", "0.20.0", "0.25.2.dev0"])
def test_a_release_that_is_not_known_is_left_to_the_engine(launch, version):
    assert "--speculative-config" in launch(method="dflash", tokens=3, engine_version=version, **DRAFT).argv


def test_thoughts_and_tools_are_parsed_if_a_recipe_is_published(launch, flags):
    found = flags(launch(model="Qwen/Qwen3.6-35B-A3B-FP8").argv)
    assert (found["--reasoning-parser"], found["--tool-call-parser"]) == ("qwen3", "qwen3_xml")
    assert "--enable-auto-tool-choice" in found
    thinking = flags(launch(model="Qwen/Qwen3-30B-A3B-Thinking-2507").argv)
    assert thinking["--reasoning-parser"] == "deepseek_r1", "reasoning-parser-swallow requires it"
    assert "--reasoning-parser" not in launch(model="Qwen/Qwen3-30B-A3B-Instruct-2507").argv


def test_in_a_container_the_program_is_the_images(launch):
    one = launch(device="cuda", runtime="container", image="i@sha256:0")
    assert one.argv[:5] == ("sh", "/run/sparkfleet/start.sh", "vllm", "serve", "/models/m")
    assert "--model" not in one.argv
    assert "PYTHONPATH" not in dict(one.env), "it would replace the image's own"
    assert [file.name for file in one.files] == ["sparkfleet_guard.py", "start.sh"]


@pytest.mark.parametrize(
    ("image", "kept"), [("eugr/spark-vllm-b12x@sha256:0", "/k/b12x"), ("i@sha256:0", None)]
)
def test_kernels_of_b12x_are_kept_for_its_images(launch, image, kept):
    one = launch(device="cuda", runtime="container", image=image, where={"cache_dir": "/k"})
    assert dict(one.env).get("B12X_COMPILE_CACHE_DIR") == kept


# --- several ranks ----------------------------------------------------------------------------------------------------

TWO = {"nodes": 2, "tp": 2, "device": "cuda", "runtime": "container", "image": "i@sha256:0"}


def test_two_ranks_word_for_word(launch):
    group = (
        "--tensor-parallel-size", "2", "--enable-expert-parallel",
        "--distributed-executor-backend", "mp", "--nnodes", "2",
    )  # fmt: skip
    first, second = (launch(rank, ep=2, **TWO) for rank in (0, 1))
    assert first.argv == (
        "sh", "/run/sparkfleet/start.sh", "vllm", "serve", "/models/m",
        "--served-model-name", "m",
        "--host", "192.168.100.11", "--port", "4321",
        "--middleware", "sparkfleet_guard.Guard", "--disable-fastapi-docs",
        "--max-model-len", "512", "--max-num-seqs", "4", "--dtype", "auto",
        "--disable-access-log-for-endpoints", "/health,/metrics", "--allowed-media-domains", "none.invalid",
        *group, "--node-rank", "0", "--master-addr", "192.168.100.11", "--master-port", "29500",
    )  # fmt: skip
    assert second.argv == (
        "vllm", "serve", "/models/m",
        "--served-model-name", "m",
        "--max-model-len", "512", "--max-num-seqs", "4", "--dtype", "auto",
        "--disable-access-log-for-endpoints", "/health,/metrics", "--allowed-media-domains", "none.invalid",
        *group, "--node-rank", "1", "--master-addr", "192.168.100.11", "--master-port", "29500", "--headless",
    )  # fmt: skip


def test_ranks_differ_in_their_rank_and_addresses_only(launch, flags):
    first, second = (flags(launch(rank, method="mtp", tokens=3, **TWO).argv) for rank in (0, 1))
    differ = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    server = {"--host", "--port", "--middleware", "--disable-fastapi-docs"}
    assert differ == {*server, "--node-rank", "--headless"}


def test_rank_0_alone_serves_and_holds_the_rendezvous(launch):
    first, second = (launch(rank, **TWO) for rank in (0, 1))
    assert (first.serves, first.health_path) == (True, "/health")
    assert (second.serves, second.health_path) == (False, "")


def test_every_rank_advertises_its_own_address(launch):
    assert [dict(launch(rank, **TWO).env)["VLLM_HOST_IP"] for rank in (0, 1)] == [
        "192.168.100.11",
        "192.168.100.12",
    ]


def test_the_deployments_variables_win_over_the_fabrics(launch):
    one = launch(env=(("NCCL_IB_MERGE_NICS", "0"), ("NCCL_DEBUG", "INFO")), **TWO)
    assert dict(one.env)["NCCL_IB_MERGE_NICS"] == "0"
    assert len(dict(one.env)) == len(one.env)


def test_a_pipeline(launch, flags):
    found = flags(launch(nodes=4, tp=2, pp=2, device="cuda").argv)
    assert (found["--tensor-parallel-size"], found["--pipeline-parallel-size"]) == ("2", "2")
    assert found["--nnodes"] == "4"


# --- several ranks on CPUs --------------------------------------------------------------------------------------------


def test_on_cpus_ranks_find_a_vllm_by_name(launch):
    one = launch(1, nodes=2, engine_version="0.32.0+cpu")
    (metadata,) = one.files
    assert one.argv[:5] == ("/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "/models/m")
    assert metadata.name == "vllm-0.32.0+cpu.dist-info/METADATA"
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata.text
    env = dict(one.env)
    assert env["PYTHONPATH"] == "/state/r"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in env
    assert env["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert not any(name.startswith("NCCL") for name in env)


def test_on_cpus_containers_find_it_among_the_mounted_files(launch):
    alone = launch(runtime="container", image="i")
    one = launch(1, nodes=2, runtime="container", image="i", engine_version="0.32.0+cpu")
    start = ("sh", "/run/sparkfleet/start.sh")
    assert alone.argv[:5] == (*start, "python3", "-m", "vllm.entrypoints.openai.api_server")
    assert one.argv[:6] == (*start, "python3", "-m", "vllm.entrypoints.cli.main", "serve")


def test_a_containers_start_keeps_the_images_own_path(launch, tmp_path):
    one = launch(device="cuda", runtime="container", image="i")
    script = next(file for file in one.files if file.name == "start.sh")
    (tmp_path / "start.sh").write_text(script.text)
    for given, found in (({}, "/run/sparkfleet"), ({"PYTHONPATH": "/image"}, "/run/sparkfleet:/image")):
        shown = subprocess.run(
            ["sh", tmp_path / "start.sh", "printenv", "PYTHONPATH"],
            env={"PATH": os.environ["PATH"], **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.strip() == found


def test_on_cpus_containers_need_no_compiler(launch):
    assert ("TORCHDYNAMO_DISABLE", "1") in launch(runtime="container", image="i").env
    assert "TORCHDYNAMO_DISABLE" not in dict(launch().env)
    assert "TORCHDYNAMO_DISABLE" not in dict(launch(runtime="container", image="i", device="cuda").env)


def test_on_cpus_experts_are_mended_by_a_plugin(launch):
    files = {file.name: file.text for file in launch(nodes=2, ep=2, engine_version="0.32.0+cpu").files}
    assert "sparkfleet_cpu_experts:register" in files["vllm-0.32.0+cpu.dist-info/entry_points.txt"]
    ast.parse(files["sparkfleet_cpu_experts.py"])


KV = {"device": "cuda", "memory_fraction": 0.6, "kv_disk_bytes": 100 * 10**9, "kv_staging_bytes": 5 * 10**9}
KV_DIR = "/state/kv/m/0123"


def test_kv_on_the_disk_goes_through_memory_of_the_planned_size(launch, flags):
    one = launch(**KV, where={"kv_dir": KV_DIR})
    given = flags(one.argv)
    assert json.loads(given["--kv-transfer-config"]) == {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 5 * 10**9,
            "secondary_tiers": [{"type": "fs", "root_dir": KV_DIR}],
        },
    }


def test_kv_on_the_disk_has_expandable_segments_and_the_allocator_that_permits_them(launch):
    one = launch(**KV, where={"kv_dir": KV_DIR})
    assert dict(one.env)["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "--enable-cumem-allocator" in one.argv
    plain = launch(device="cuda", memory_fraction=0.6)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in dict(plain.env)
    assert not {"--kv-transfer-config", "--enable-cumem-allocator"} & set(plain.argv)


def test_each_rank_has_its_own_share_of_memory(launch):
    shares = {"device": "cuda", "nodes": 2, "memory_fraction": 0.6}
    for rank, own in ((0, "0.3"), (1, "0.6")):
        argv = launch(rank, memory_fractions=(0.3, 0.6), **shares).argv
        assert argv[argv.index("--gpu-memory-utilization") + 1] == own
        argv = launch(rank, **shares).argv
        assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.6"
