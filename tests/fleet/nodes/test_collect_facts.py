import sys

import pytest
from batch_fake import BatchFake
from fake_channel import FakeChannel

from sparkfleet.errors import FactError, NodeError
from sparkfleet.fleet.nodes.collect_facts import collect_facts
from sparkfleet.hostfacts.machine import ReadIdentity
from sparkfleet.hostfacts.memory import ReadKernel
from sparkfleet.hostfacts.node import InstalledEngine, ReadInstalledEngines, ReadProcessors
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.unreachable import Unreachable
from sparkfleet.specs.load import parse_inventory

MEMINFO = "MemTotal: 1000 kB\nMemAvailable: 500 kB\n"


def inventory(node="{address: local}"):
    return parse_inventory(f"fleet: home\nhead: a\nnodes:\n  a: {node}\n", "inventory.yaml")


def channel(**more):
    responses = {
        ("cat", "/proc/meminfo"): MEMINFO,
        ReadProcessors.argv: '[20, "aarch64"]',
        (sys.executable, *ReadProcessors.argv[1:]): '[20, "aarch64"]',
        (sys.executable,): '{"vllm": "0.32.0+cpu"}',
        **more.pop("responses", {}),
    }
    return BatchFake("a", responses)


async def test_everything_that_planning_needs():
    (facts,) = await collect_facts(inventory(), {"a": channel()})
    assert facts.memory.available == 500 * 1024
    assert facts.processors.machine == "aarch64"
    assert facts.gpu is None
    assert facts.engines == {"vllm": InstalledEngine(python=sys.executable, version="0.32.0+cpu")}


async def test_this_machine_needs_no_python3_in_path():
    """It may be a wrapper that takes five times as long to start as the interpreter of this process."""
    node = channel()
    await collect_facts(inventory(), {"a": node})
    assert "python3" not in {call.argv[0] for call in node.calls}


async def test_a_gpu():
    node = channel(responses={("nvidia-smi",): "NVIDIA GB10, 580.95.05\n"})
    (facts,) = await collect_facts(inventory(), {"a": node})
    assert facts.gpu.name == "NVIDIA GB10"


MISMATCH = Completed(
    argv=("nvidia-smi",),
    exit_code=18,
    stdout="Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.142\n",
    stderr="",
)
SPARK = '/etc/dgx-release:DGX_NAME="DGX Spark"\n/sys/class/dmi/id/product_name:NVIDIA_DGX_Spark\n'


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (MISMATCH, "Driver/library version mismatch"),
        ("No devices were found\n", "nvidia-smi finds none"),
        (NodeError("it hangs"), "nvidia-smi did not end within 30 s"),
        (None, "nvidia-smi was not found"),
    ],
)
async def test_a_spark_whose_gpu_does_not_answer_is_no_node_without_one(answer, why):
    """Planned without its GPU, its groups moved to other nodes after each driver upgrade that awaited a reboot."""
    responses = {} if answer is None else {("nvidia-smi",): answer}
    with pytest.raises(NodeError, match=rf"a: the GPU of this Spark does not answer: .*{why}") as caught:
        await collect_facts(inventory(), {"a": channel(responses={ReadIdentity.argv: SPARK, **responses})})
    assert "sparkfleet drain a" in caught.value.do
    other = {ReadIdentity.argv: "/etc/os-release:NAME=Debian\n", **responses}
    (facts,) = await collect_facts(inventory(), {"a": channel(responses=other)})
    assert facts.gpu is None


async def test_engines_of_their_own_environments_and_none_of_ours():
    node = channel(responses={("/opt/vllm/bin/python",): '{"vllm": "0.19.0"}'})
    spec = inventory("{address: local, engines: {vllm: {python: /opt/vllm/bin/python}}}")
    (facts,) = await collect_facts(spec, {"a": node})
    assert facts.engines == {"vllm": InstalledEngine(python="/opt/vllm/bin/python", version="0.19.0")}


async def test_a_command_that_fails_is_told_with_its_words():
    failed = Completed(argv=("cat",), exit_code=1, stdout="", stderr="cat: /proc/meminfo: Permission denied")
    node = channel(responses={("cat", "/proc/meminfo"): failed})
    with pytest.raises(NodeError, match="Permission denied"):
        await collect_facts(inventory(), {"a": node})


REMOTE = "{address: 192.168.1.11, user: nvidia, host_key: 'SHA256:" + "A" * 43 + "'}"


async def test_over_ssh_one_round_trip_tells_all_of_a_node():
    installed = {ReadInstalledEngines.argv: '["/home/nvidia/.local/e/bin/python", {"vllm": "0.32.0"}]'}
    node = channel(responses=installed)
    (facts,) = await collect_facts(inventory(REMOTE), {"a": node})
    assert node.batches == 1
    assert facts.memory.total == 1000 * 1024
    assert facts.engines["vllm"].python == "/home/nvidia/.local/e/bin/python"


async def test_a_node_without_an_environment_of_ours_has_no_engines():
    node = channel(responses={ReadInstalledEngines.argv: '["", {}]'})
    (facts,) = await collect_facts(inventory(REMOTE), {"a": node})
    assert facts.engines == {}


async def test_a_node_that_says_something_else_is_named():
    node = channel(responses={("cat", "/proc/meminfo"): "Welcome"})
    with pytest.raises(FactError, match=r"a: .*MemTotal"):
        await collect_facts(inventory(), {"a": node})


class Gone(FakeChannel):
    """A node that is off."""

    async def run(self, argv, **_):
        raise Unreachable(f"{self.node} is off", do="Try again.")


OTHER = REMOTE.replace(".11", ".12")
BOTH = f"fleet: home\nhead: a\nnodes:\n  a: {REMOTE}\n  b: {OTHER}\n"


async def test_all_nodes_that_are_not_reached_are_named():
    both = parse_inventory(BOTH, "inventory.yaml")
    with pytest.raises(NodeError, match="a is off\nb is off") as caught:
        await collect_facts(both, {"a": Gone("a"), "b": Gone("b")})
    assert caught.value.do == "Try again."  # without the head no node can be drained


async def test_the_way_to_plan_without_a_node_that_is_off_is_named():
    both = parse_inventory(BOTH, "inventory.yaml")
    well = channel(responses={ReadInstalledEngines.argv: '["", {}]'})
    with pytest.raises(NodeError, match="b is off") as caught:
        await collect_facts(both, {"a": well, "b": Gone("b")})
    assert caught.value.do == "Try again. `sparkfleet drain b`: the other nodes are planned without it."


RULES = "/etc/sparkfleet/firewall.nft:\t\ttcp dport 10002-60999 drop\n"


@pytest.mark.parametrize(
    ("read", "closed"), [(RULES, True), (RULES.replace("drop", "accept"), False), ("", False)]
)
async def test_the_firewalls_rules(read, closed):
    node = channel(responses={ReadKernel.argv: read})
    (facts,) = await collect_facts(inventory(), {"a": node})
    assert facts.fleet_firewall is closed


async def test_the_release_of_the_kernel_is_read_for_rules_about_it():
    release = "/proc/sys/kernel/osrelease:6.17.0-1031-nvidia\n"
    (facts,) = await collect_facts(inventory(), {"a": channel(responses={ReadKernel.argv: release})})
    assert facts.kernel == "6.17.0-1031-nvidia"


async def test_rules_that_cannot_be_read_close_nothing():
    failed = Completed(argv=("grep",), exit_code=1, stdout=RULES, stderr="")
    (facts,) = await collect_facts(inventory(), {"a": channel(responses={ReadKernel.argv: failed})})
    assert not facts.fleet_firewall
