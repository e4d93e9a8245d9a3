"""Command, environment, tokens and forwarder of a rank."""

import os

import pytest
from address_values import cable, inventory, spark
from launches import FLEET, desired, launches_for
from pydantic import create_model

from sparkfleet.checkpoints.gguf.gguf_files import GgufFiles
from sparkfleet.engines.harmony import ENCODINGS
from sparkfleet.errors import ControlError
from sparkfleet.gateway.access.keys import engine_token, metrics_token
from sparkfleet.group.ranks.rank_node import node_facts, spec_here
from sparkfleet.group.ranks.rank_spec import Ports, RankNodeFacts, kv_dir
from sparkfleet.perf.prediction import Speculation
from sparkfleet.planner.types.plan import Candidate, GroupShape
from sparkfleet.runtime.base import ContainerSpec
from sparkfleet.runtime.files.builtin_models import builtin_path
from sparkfleet.runtime.files.fleet_paths import FleetPaths
from sparkfleet.runtime.files.token_secrets import TokenSecrets
from sparkfleet.runtime.sealed_env import EnvSealer


def test_ranks_are_told_the_same_but_for_their_number_and_address(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a", "b"), tp=2)))
    assert [placement.network.rails[0].netdev for placement in launch.placements] == [
        "enp1s0f1np1",
        "enp1s0f1np1",
    ]
    paths = FleetPaths(tmp_path / "home")
    zero, one = (
        spec_here(paths, launch, rank, Ports(http=4000, rendezvous=5000), "secret") for rank in (0, 1)
    )
    assert "--nnodes" in zero.argv
    assert "192.168.100.10" in one.argv
    serves = {"--host", "--port", "4000", "--middleware", "sparkfleet_guard.Guard", "--disable-fastapi-docs"}
    assert set(zero.argv) - set(one.argv) <= {*serves, "0", "--node-rank"}
    assert set(one.argv) - set(zero.argv) <= {"--headless", "1"}
    assert zero.secret_env == one.secret_env


def test_a_digest_is_that_of_the_plan_and_of_the_token(tmp_path):
    """An engine goes on under another release, which may start it with other paths and other arguments."""
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a", "b"), tp=2)))

    def digest(launch=launch, secret="secret", home="home", rank=1, **ports):
        ports = Ports(**{"http": 4000, "rendezvous": 5000} | ports)
        return spec_here(FleetPaths(tmp_path / home), launch, rank, ports, secret).digest

    assert {digest(), digest(http=4001, rendezvous=5001), digest(home="elsewhere")} == {digest()}
    assert digest(launch.model_copy(update={"drain_s": 1.0, "needs": 5, "generation": 9})) == digest()
    candidate = launch.candidate
    for field, value in {
        "context": candidate.context + 1,
        "env": (("A", "1"),),
        "engine_args": ("--x",),
    }.items():
        other = candidate.model_copy(update={field: value})
        assert digest(launch.model_copy(update={"candidate": other})) != digest(), field
    elsewhere = launch.placements[1].model_copy(update={"node": "c"})
    assert digest(launch.model_copy(update={"placements": (launch.placements[0], elsewhere)})) != digest()
    assert digest(secret="another") != digest()


def test_ranks_of_a_ring_meet_on_the_management_network_by_its_own_netdev(tmp_path):
    """Not on a rail: no rail leads to all of them. The netdev is this node's, found by the address."""
    nodes = {name: spark(number) for number, name in enumerate("abc", start=1)}
    nodes["a"]["address"] = "127.0.0.1"
    links = (cable("a", "b", 100, "01"), cable("b", "c", 101, "01"), cable("c", "a", 102, "01"))
    (launch,) = launches_for(inventory(nodes, links), desired(GroupShape(nodes=("a", "b", "c"), tp=3)))
    spec = spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000, rendezvous=5000), "secret")
    assert dict(spec.env)["GLOO_SOCKET_IFNAME"] == "lo"


def test_gpt_oss_is_told_of_its_encodings_where_all_of_them_lie(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    gpt = launch.candidate.model_copy(update={"model": "/models/gpt-oss-120b", "device": "cuda"})
    launch = launch.model_copy(update={"candidate": gpt})
    paths = FleetPaths(tmp_path / "home")
    paths.encodings.mkdir(parents=True)

    def told():
        return dict(spec_here(paths, launch, 0, Ports(http=4000), "secret").env).get(
            "TIKTOKEN_ENCODINGS_BASE"
        )

    (paths.encodings / ENCODINGS[0]).touch()
    assert told() is None
    (paths.encodings / ENCODINGS[1]).touch()
    assert told() == str(paths.encodings)


def custom(shape, **fields):
    """The launch of a custom workload, which checks no token."""
    (launch,) = launches_for(FLEET, desired(shape))
    told = {"engine": "custom", "command": ("serve",), "port": 8000, **fields}
    return launch.model_copy(update={"candidate": launch.candidate.model_copy(update=told)})


def test_an_engine_without_a_token_is_on_loopback_behind_a_forwarder(tmp_path):
    launch = custom(GroupShape(nodes=("a",)))
    paths, ports = FleetPaths(tmp_path / "home"), Ports(http=4000, inner=4001)
    spec = spec_here(paths, launch, 0, ports, "secret")
    address = launch.placements[0].address
    assert address == "192.168.100.10"
    assert spec.forward is not None
    assert (spec.forward.host, spec.port, spec.forward.target_port) == (address, 4000, 8000)
    assert spec.declared_port == 8000
    assert dict(spec.env)["SPARKFLEET_HOST"] == "127.0.0.1"
    assert spec.forward.token not in repr(spec)
    chosen = spec_here(paths, custom(GroupShape(nodes=("a",)), port=None), 0, ports, "secret")
    assert (dict(chosen.env)["SPARKFLEET_PORT"], chosen.forward.target_port) == ("4001", 4001)


def test_a_custom_workload_gets_the_directory_of_a_model_that_was_copied(tmp_path):
    model, paths = tmp_path / "vectors", FleetPaths(tmp_path / "home")
    model.mkdir()
    given = {"model": str(model), "runtime": "container", "image": "localhost/vectors:1"}
    launch = custom(GroupShape(nodes=("a",)), stage_model=True, **given)
    assert node_facts(paths, launch, 0).model_path == str(model)
    builtin = custom(GroupShape(nodes=("a",)), model="builtin:tiny")
    assert node_facts(paths, builtin, 0).model_path == "builtin:tiny", "its own name for it"
    staged = builtin.model_copy(
        update={"candidate": builtin.candidate.model_copy(update={"stage_model": True})}
    )
    assert node_facts(paths, staged, 0).model_path == str(builtin_path("builtin:tiny"))


def test_the_ports_of_a_forwarder_do_not_keep_a_rank_from_being_adopted(tmp_path):
    launch, paths = custom(GroupShape(nodes=("a",)), port=None), FleetPaths(tmp_path / "home")
    one, other = (
        spec_here(paths, launch, 0, Ports(http=http, inner=inner), "secret")
        for http, inner in ((4000, 4001), (5000, 5001))
    )
    assert one.digest == other.digest
    assert spec_here(paths, launch, 0, Ports(http=4000, inner=4001), "another").digest != one.digest


@pytest.mark.parametrize("address", ["127.0.0.1", "192.168.100.10"])
def test_llama_cpp_has_a_key_and_is_behind_a_forwarder_on_loopback_too(tmp_path, address):
    """Its health needs no key, and Prometheus has another token."""
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    told = {"engine": "llama.cpp", "gguf": GgufFiles(model="m.gguf"), "model": "/models/m"}
    placements = tuple(one.model_copy(update={"address": address}) for one in launch.placements)
    launch = launch.model_copy(
        update={"candidate": launch.candidate.model_copy(update=told), "placements": placements}
    )
    spec = spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000, inner=4001), "secret")
    token = engine_token(b"secret", launch.name)
    assert (spec.forward.host, spec.port, spec.forward.target_port) == (address, 4000, 4001)
    assert (spec.forward.token, spec.forward.metrics_path) == (token, "/metrics")
    assert spec.secret_env == (("LLAMA_API_KEY", token),)
    flags = dict(zip(spec.argv, spec.argv[1:], strict=False))
    assert (flags["--host"], flags["--port"]) == ("127.0.0.1", "4001")
    assert token not in " ".join(spec.argv)


def test_one_that_checks_the_token_itself_has_no_forwarder(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    spec = spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000, inner=4001), "secret")
    assert (spec.forward, spec.port) == (None, 4000)
    assert {"VLLM_API_KEY", "SPARKFLEET_METRICS_TOKEN"} == set(dict(spec.secret_env))


def test_during_a_change_an_engine_gets_the_new_token_and_all_metrics_tokens(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    forwarded = custom(GroupShape(nodes=("a",)), port=None)
    paths, ports = FleetPaths(tmp_path / "home"), Ports(http=4000, inner=4001)
    changing, changed = TokenSecrets(current="new", former=("old",)), TokenSecrets(current="new")
    spec = spec_here(paths, launch, 0, ports, "secret", tokens=changing)
    metrics = f"{metrics_token(b'new')} {metrics_token(b'old')}"
    assert dict(spec.secret_env) == {
        "VLLM_API_KEY": engine_token(b"new", launch.name),
        "SPARKFLEET_METRICS_TOKEN": metrics,
    }
    forward = spec_here(paths, forwarded, 0, ports, "secret", tokens=changing).forward
    assert (forward.token, forward.metrics_token) == (engine_token(b"new", forwarded.name), metrics)
    for each in (launch, forwarded):  # the end of the change is no reason to start the engine again
        one, other = (
            spec_here(paths, each, 0, ports, "secret", tokens=t).digest for t in (changing, changed)
        )
        assert one == other
        assert one != spec_here(paths, each, 0, ports, "secret").digest


def test_a_sealed_variable_reaches_the_engine_alone(tmp_path):
    shape = GroupShape(nodes=("a",))
    sealed = EnvSealer(b"secret").seal("HF_TOKEN", "hf_0123456789")
    wanted = desired(shape, env=(("HF_TOKEN", sealed), ("NCCL_DEBUG", "INFO")))
    (launch,) = launches_for(inventory({"a": {"address": "local"}}), wanted)
    assert "hf_0" not in launch.model_dump_json()
    spec = spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000), "secret")
    assert ("HF_TOKEN", "hf_0123456789") in spec.secret_env
    assert "HF_TOKEN" not in dict(spec.env)
    assert ("NCCL_DEBUG", "INFO") in spec.env
    with pytest.raises(ControlError, match="HF_TOKEN cannot be opened"):
        spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000), "another secret")


def kept(launch, **fields):
    """The launch with KV on the disk, and with these fields of its candidate."""
    given = {"device": "cuda", "kv_disk_bytes": 10**11, "kv_staging_bytes": 10**9, **fields}
    return launch.model_copy(update={"candidate": launch.candidate.model_copy(update=given)})


@pytest.fixture
def kv_path(tmp_path):
    """kv_path(model=directory, **fields): the directory of KV of a rank, from its command on this node."""
    (planned,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    paths = FleetPaths(tmp_path / "home")

    def kv_path(model=None, deployment="tiny", **fields):
        launch = kept(planned, model=str(model or weights(tmp_path / "m")), **fields)
        launch = launch.model_copy(update={"deployment": deployment})
        return spec_here(paths, launch, 0, Ports(http=4000), "secret").kv_files.path

    return kv_path


def weights(directory, text="weights"):
    directory.mkdir(exist_ok=True)
    if not (directory / "model.safetensors").exists():
        (directory / "model.safetensors").write_text(text)
    return directory


def test_kv_on_the_disk_is_kept_under_everything_that_a_block_depends_on(kv_path, tmp_path):
    one = kv_path()
    assert one.startswith(str(tmp_path / "home" / "kv" / "tiny"))
    assert kv_path() == one
    for fields in (
        {"context": 1024}, {"concurrency": 9}, {"kv_disk_bytes": 1}, {"kv_staging_bytes": 2}, {"memory_fraction": 0.5},
        {"mmap": False}, {"media_domains": ("example.org",)}, {"batch_tokens": 4096},
    ):  # fmt: skip
        assert kv_path(**fields) == one, fields
    for fields in (
        {"engine_version": "0.33.0"}, {"quant": "nvfp4"}, {"kv_dtype": "fp8"}, {"dtype": "float16"}, {"image": "i@sha256:1"},
        {"engine_args": ("--block-size=32",)}, {"env": (("VLLM_X", "1"),)}, {"runtime": "container", "image": "j"},
        {"speculation": Speculation(method="ngram", tokens=3)}, {"python": "/other/bin/python"},
    ):  # fmt: skip
        assert kv_path(**fields) != one, fields
    assert kv_path(deployment="other") != one


def test_a_field_that_a_later_release_adds_loses_no_kv():
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    now = kept(launch).candidate
    later = create_model("Later", __base__=Candidate, added=(int, 0))
    facts = RankNodeFacts(model_path="/m", python="python3")
    found = [
        kv_dir("/kv", "tiny", one, facts)
        for one in (now, later.model_validate(dict(now)), later.model_validate({**dict(now), "added": 1}))
    ]
    assert found[0] == found[1] != found[2]


def test_other_weights_in_the_same_directory_have_other_kv(kv_path, tmp_path):
    """vLLM's own names of the files know the name of the model only: blocks of the former weights would be taken."""
    directory = weights(tmp_path / "m")
    one = kv_path(directory)
    (directory / "model.safetensors").write_text("of the same size"[:7])
    assert kv_path(directory) != one


def test_another_commit_of_a_model_has_other_kv(kv_path, tmp_path):
    snapshots = tmp_path / "models--org--m" / "snapshots"
    snapshots.mkdir(parents=True)
    one, other = (weights(snapshots / commit) for commit in ("a" * 40, "b" * 40))
    assert kv_path(one) != kv_path(other)
    first = kv_path(one)
    os.utime(one / "model.safetensors", (1, 1))  # copied from another node: the commit is the identity
    assert kv_path(one) == first


def test_another_vllm_in_the_same_environment_has_other_kv(kv_path, tmp_path):
    packages = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    (packages / "vllm-0.32.0.dist-info").mkdir(parents=True)
    python = str(tmp_path / "env" / "bin" / "python")
    one = kv_path(python=python)
    assert kv_path(python=python) == one
    (packages / "vllm-0.32.0.dist-info").rename(packages / "vllm-0.33.0.dist-info")
    assert kv_path(python=python) != one


def test_without_the_field_a_rank_keeps_nothing_on_the_disk(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    assert spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000), "secret").kv_files is None


def test_a_containers_shared_memory_has_room_for_what_goes_to_the_disk(tmp_path):
    (launch,) = launches_for(FLEET, desired(GroupShape(nodes=("a",))))
    launch = kept(launch, runtime="container", image="i@sha256:1", kv_staging_bytes=5 * 2**30 + 1)
    tool = ContainerSpec(tool="docker", image="i@sha256:1")
    spec = spec_here(FleetPaths(tmp_path / "home"), launch, 0, Ports(http=4000), "secret", container=tool)
    assert spec.argv[spec.argv.index("--shm-size") + 1] == "22g"
    assert f"{spec.kv_files.path}:{spec.kv_files.path}:rw" in spec.argv
