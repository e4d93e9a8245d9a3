import asyncio
import base64
import time

import pytest
from fake_channel import Call, FakeChannel, program_request, program_result
from sparks import Spark, inventory

from sparkfleet.doctor.collect import gather, netdevs_of, read_raw, silent
from sparkfleet.doctor.registry import examine
from sparkfleet.doctor.report import DoctorReport
from sparkfleet.errors import NodeError
from sparkfleet.hostfacts.venv import ReadPythonEnvironment
from sparkfleet.remote.batch import PROGRAM
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.unreachable import HostKeyChanged, Suspected

DOCKER = ("docker", "info")


class Mute(FakeChannel):
    """Takes commands and never answers."""

    async def run(self, argv, **more):
        await asyncio.Event().wait()


class Refusing(FakeChannel):
    def __init__(self, node, error):
        super().__init__(node)
        self.error = error

    async def run(self, argv, **more):
        raise self.error


async def test_one_round_trip_and_the_clock():
    channel = Spark(1).channel()
    view = (await gather(inventory(), {"spark1": channel}, nodes=["spark1"])).nodes[0]
    assert channel.batches == 1
    assert view.unknown == {}
    assert abs(view.clock.ahead_s) < 1
    assert view.gpus[0].name == "NVIDIA GB10"
    assert [tool.tool for tool in view.container_tools] == ["docker"]
    assert set(view.settings) == set(netdevs_of(inventory(), "spark1")) == {"enp1s0f1np1", "enP2p1s0f1np1"}


@pytest.mark.parametrize(("docker", "asked"), [("usable", 0), ("refused", 1), ("missing", 1)])
async def test_podman_is_asked_only_without_a_docker_that_works(docker, asked):
    """It makes directories in a home that never used it, and doctor changes nothing."""
    spark, calls = Spark(1), []

    def podman(call):
        calls.append(call.argv)
        return Completed(argv=call.argv, exit_code=125, stdout="", stderr="Error: no newuidmap")

    spark.answers["podman",] = podman
    if docker == "refused":
        refusal = Completed(argv=(), exit_code=1, stdout="", stderr="permission denied")
        spark.answers[DOCKER] = refusal
    elif docker == "missing":
        del spark.answers[DOCKER]
    view = (await gather(inventory(), {"spark1": spark.channel()}, nodes=["spark1"])).nodes[0]
    assert len(calls) == asked
    raw = await read_raw(spark.channel(), inventory().nodes["spark1"])
    assert (len(calls), [one.field for one in raw].count("podman")) == (2 * asked, asked), "as of a bundle"
    assert [tool.usable for tool in view.container_tools] == {
        "usable": [True],
        "refused": [False, False],
        "missing": [False],
    }[docker]


async def test_a_node_that_never_answers_is_one_error_and_does_not_hold_up_the_rest():
    began = time.monotonic()
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Mute("spark2")}, timeout_s=1)
    assert time.monotonic() - began < 5
    assert fleet.answered[0].memory is not None
    errors = [one for one in examine(fleet) if one.severity == "error"]
    assert [(one.id, one.subject) for one in errors] == [("node-silent", "spark2")]
    assert "may be down or busy" in errors[0].means


async def test_checks_of_a_silent_node_are_not_known_with_the_reason():
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Mute("spark2")}, timeout_s=1)
    told = {one.id: one for one in examine(fleet) if one.scope == "link"}
    assert told["rail-mtu"].severity == "unknown"
    assert "spark2 did not answer" in told["rail-mtu"].what


async def test_another_host_key_is_reported():
    changed = HostKeyChanged(
        "spark2: its SSH host key is SHA256:x, but SHA256:y is pinned", means="m", do="d"
    )
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Refusing("spark2", changed)})
    errors = [one for one in examine(fleet) if one.severity == "error"]
    assert [one.id for one in errors] == ["host-key-changed"]
    assert errors[0].what.count("spark2") == 1
    assert (errors[0].means, errors[0].do) == ("m", ("d",))


async def test_a_refusal_without_advice_gets_some():
    view = silent("spark2", inventory().nodes["spark2"], Suspected("no answer in 5 s"))
    assert view.silence.what == "spark2: no answer in 5 s"
    assert "ssh nvidia@192.168.1.12" in view.silence.do


async def test_a_node_without_any_of_the_tools_is_reported_with_the_reasons():
    bare = Spark(2)
    bare.answers = {}
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": bare.channel()})
    view = fleet.node("spark2")
    assert view.gpus is None
    assert "nvidia-smi was not found" in view.unknown["gpus"]
    assert view.container_tools == ()
    assert examine(fleet)


@pytest.mark.parametrize(
    "junk", ["", "\0\x1b[2J" * 100, "null", "[]", "{}", "[[[[", "x" * 200_000, "\n" * 9999]
)
async def test_a_node_that_prints_garbage_breaks_nothing(junk):
    class Junk(FakeChannel):
        async def run(self, argv, *, stdin=b"", on_output=None, **more):
            if argv == PROGRAM.argv:
                out = [[base64.b64encode(junk.encode()).decode(), 0]] * 2
                count = len(program_request(Call(argv, stdin=stdin))["argvs"])
                answers = [{"exit_code": 0, "outputs": out}] * count
                on_output(program_result(answers).encode())
                return Completed(argv=argv, exit_code=0, stdout="", stderr="")
            return Completed(argv=tuple(argv), exit_code=0, stdout=junk, stderr=junk)

    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Junk("spark2")})
    report = DoctorReport.of("home", examine(fleet))
    assert "\x1b" not in str(report.as_json())


async def test_a_batch_that_does_not_come_back_is_a_silent_node():
    error = NodeError("its Python did not run the commands")
    fleet = await gather(inventory(), {"spark1": Spark(1).channel(), "spark2": Refusing("spark2", error)})
    assert fleet.node("spark2").silence.what.startswith("spark2: its Python")


async def test_only_some_nodes_and_the_links_between_them():
    fleet = await gather(inventory(), {"spark1": Spark(1).channel()}, nodes=["spark1"])
    assert [node.name for node in fleet.nodes] == ["spark1"]
    assert fleet.links == ()


async def test_a_raw_answer_has_the_reason_why_there_is_none():
    spark = Spark(1)
    spark.answers[DOCKER] = NodeError("docker did not end within 20 s")
    answers = await read_raw(spark.channel(), inventory().nodes["spark1"])
    raw = {one.argv[0]: one for one in answers}
    assert (raw["chronyc"].missing, raw["chronyc"].late, raw["chronyc"].exit_code) == (True, False, None)
    assert (raw["docker"].missing, raw["docker"].late) == (False, True)
    assert (raw["id"].missing, raw["id"].late, raw["id"].exit_code) == (False, False, 0)


async def test_rails_are_known_if_only_one_of_their_nodes_is_examined():
    """Sockets on a rail were reported as open to the management network, and the lines for ufw closed the rails."""
    spark = Spark(2)
    rail = "192.168.100.11" if "192.168.100.11" in str(inventory().links) else ""
    assert rail
    spark.answers["ss",] = (
        f'LISTEN 0 9 {rail}:29384 *:* users:(("vllm",pid=7,fd=3))\n'
        'LISTEN 0 9 *:8001 *:* users:(("vllm",pid=7,fd=3))\n'
    )
    fleet = await gather(inventory(), {"spark2": spark.channel()}, nodes=["spark2"])
    (told,) = [one for one in examine(fleet) if one.id == "exposed-ports" and one.severity != "ok"]
    assert "8001" in told.what
    assert "29384" not in told.what
    assert "sudo ufw allow in on enp1s0f1np1" in str(told.do)
    assert fleet.links == ()


async def test_the_environment_of_the_inventory_is_the_one_that_is_looked_at():
    """With one of their own the nodes had "sparkfleet and Ray not installed yet", and `up` as the remedy."""
    spark = Spark(1)
    own = ReadPythonEnvironment.own("/shared/bin/python")
    spark.answers[own] = '{"python": "3.12.3", "executable": "/e", "sparkfleet": "0.1.0", "ray": "9.9.9"}'
    shared = inventory().model_copy(update={"environment": "/shared/bin/python"})
    view = (await gather(shared, {"spark1": spark.channel()}, nodes=["spark1"])).nodes[0]
    assert view.python.ray == "9.9.9"
