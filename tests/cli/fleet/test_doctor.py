import asyncio
import json
import sys
import zlib
from base64 import b64encode

import pytest
from fake_channel import FakeChannel
from sparks import INVENTORY, Spark

import sparkfleet
from sparkfleet.checkpoints.remote_metadata import program
from sparkfleet.doctor.measure import MeasuredPaths, path_of, with_measurement
from sparkfleet.errors import NodeError
from sparkfleet.fabric.link_measurements import LinkMeasurement, RailMeasurement, TransportProof
from sparkfleet.fabric.measure import pairs_of
from sparkfleet.fleet import doctor as use_case
from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.hostfacts.gpu import ReadGpuState
from sparkfleet.hostfacts.venv import ReadPythonEnvironment


@pytest.fixture
def sparks(monkeypatch):
    sparks = Spark(1), Spark(2)
    for spark in sparks:
        spark.change(ReadPythonEnvironment.argv, '"0.1.0"', f'"{sparkfleet.__version__}"')
    monkeypatch.setattr(
        NodeAccess, "channels", property(lambda self: {spark.name: spark.channel() for spark in sparks})
    )
    return sparks


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text(INVENTORY)
    return path


def test_two_healthy_sparks(sparkfleet, sparks, inventory):
    code, out, err = sparkfleet("doctor", "-i", inventory, "--no-measure")
    assert code == 0, out + err
    assert "Nothing is wrong" in out
    assert "error" not in out


def test_an_error_is_told_with_its_remedy_and_the_exit_code_says_so(sparkfleet, sparks, inventory):
    sparks[1].change(ReadGpuState.argv, "580.142", "580.95.05")
    code, out, err = sparkfleet("doctor", "-i", inventory, "--no-measure")
    assert code == 1
    assert "fleet home" in out
    assert "NVIDIA drivers differ: 580.142 on spark1, 580.95.05 on spark2   [driver-same]" in out
    assert "→ sudo apt update && sudo apt full-upgrade && sudo reboot" in out
    assert "2 errors, 0 warnings" in err


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [((), "2 of 2 nodes and 1 of 1 links"), (("spark2",), "1 of 2 nodes and 0 of 1 links")],
)
def test_the_first_line_comes_before_the_checks_are_loaded(
    sparkfleet, sparks, inventory, monkeypatch, nodes, counts
):
    monkeypatch.setitem(sys.modules, "sparkfleet.fleet.doctor", None)
    with pytest.raises(ImportError):
        sparkfleet("doctor", *nodes, "-i", inventory)
    monkeypatch.undo()
    assert sparkfleet("doctor", *nodes, "-i", inventory, "--no-measure")[1].startswith(
        f"Fleet home: checking {counts}."
    )


def test_json_has_a_version(sparkfleet, sparks, inventory):
    code, out, _ = sparkfleet("doctor", "-i", inventory, "--no-measure", "--json")
    told = json.loads(out)
    assert (code, told["version"], told["failed"], told["fleet"]) == (0, 1, False, "home")
    assert {one["severity"] for one in told["findings"]} == {"ok"}


def test_only_some_nodes(sparkfleet, sparks, inventory):
    _, out, _ = sparkfleet("doctor", "spark2", "-i", inventory, "--no-measure", "--json")
    assert {one["subject"] for one in json.loads(out)["findings"]} == {"spark2", "home"}


def test_a_node_that_is_not_in_the_inventory(sparkfleet, sparks, inventory):
    code, _, err = sparkfleet("doctor", "spark3", "-i", inventory)
    assert code == 1
    assert "spark3" in err
    assert "spark1" in err


def test_a_silent_node_is_one_error(sparkfleet, sparks, inventory, monkeypatch):
    class Gone(FakeChannel):
        async def run(self, argv, **more):
            await asyncio.sleep(0)
            raise NodeError(
                "spark2: no answer from 192.168.1.12 port 22 in 10 s", means="It is suspected to be down."
            )

    monkeypatch.setattr(
        NodeAccess,
        "channels",
        property(lambda self: {"spark1": sparks[0].channel(), "spark2": Gone("spark2")}),
    )
    code, out, err = sparkfleet("doctor", "-i", inventory, "--no-measure")
    assert code == 1
    assert "spark2: no answer from 192.168.1.12" in out
    assert "suspected" in out
    assert "1 error, 0 warnings" in err


@pytest.fixture
def a_slow_link(monkeypatch):
    async def measured(spec, fleet, channels):
        (pair,) = pairs_of(spec)
        rails = tuple(
            RailMeasurement(netdev=a.netdev, method="ib_write_bw", gb_per_s=1.65, latency_us=1.5)
            for a, _ in pair.rails
        )
        proof = TransportProof(moved={}, holds=True, said="moved")
        kept = LinkMeasurement(nodes=pair.nodes, rails=rails, proof=proof, when=0.0)
        return MeasuredPaths((with_measurement(path_of(pair), kept),), (kept,))

    monkeypatch.setattr(use_case, "measure_paths", measured)


def test_what_was_measured_is_kept_for_the_planner(sparkfleet, sparks, inventory, a_slow_link, tmp_path):
    code, out, _ = sparkfleet("doctor", "-i", inventory)
    assert code == 1
    assert "rail 1 of spark1–spark2 gives 13.2 Gb/s, measured with ib_write_bw" in out
    assert json.loads((tmp_path / "state" / "home" / "links.json").read_text())["links"]


@pytest.mark.parametrize("harm", ["a damaged file", "no directory"])
def test_findings_are_shown_if_measurements_cannot_be_kept(
    sparkfleet, sparks, inventory, a_slow_link, tmp_path, harm
):
    links = tmp_path / "state" / "home" / "links.json"
    if harm == "a damaged file":
        links.parent.mkdir(parents=True, exist_ok=True)
        links.write_bytes(b"\xff\xfe")
    else:
        (tmp_path / "state").mkdir(exist_ok=True)
        links.parent.write_text("a file in its place")
    code, out, err = sparkfleet("doctor", "-i", inventory)
    assert code == 1
    assert "rail 1 of spark1–spark2 gives 13.2 Gb/s" in out
    assert "warning: the measurements were not kept for `plan`." in err


def test_weights_that_do_not_fit(sparkfleet, sparks, inventory, tmp_path):
    for spark in sparks:
        for argv, said in spark.answers.items():
            if isinstance(said, str) and "3200000000000" in said:
                spark.answers[argv] = said.replace("3200000000000", "30000000000")
    spec = tmp_path / "big.yaml"
    spec.write_text("name: big\nmodel: Qwen/Qwen3-235B-A22B-GPTQ-Int4\n")
    code, out, err = sparkfleet("doctor", "-i", inventory, "--no-measure", "--for", spec)
    assert code == 1, out + err
    assert "[disk-for-weights]" in out
    assert "sparkfleet models prune" in out


class Telling(FakeChannel):
    """A Spark that also lists its checkpoints."""

    def __init__(self, spark, answer):
        super().__init__(spark.name, {program(): answer})
        self.spark = spark.channel()

    async def run(self, argv, **more):
        told = super().run if argv == program() else self.spark.run
        return await told(argv, **more)


def test_weights_whose_size_a_node_tells(sparkfleet, sparks, inventory, monkeypatch, tmp_path):
    for spark in sparks:
        for argv, said in spark.answers.items():
            if isinstance(said, str) and "3200000000000" in said:
                spark.answers[argv] = said.replace("3200000000000", "30000000000")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    content = json.dumps(config).encode()
    file = {"name": "config.json", "size": len(content), "start": b64encode(zlib.compress(content)).decode()}
    lines = ({"at": 0, "directory": "/models/big"}, {"at": 0, **file}, {"end": True})
    answers = ('{"end": true}\n', "".join(json.dumps(line) + "\n" for line in lines))
    channels = {spark.name: Telling(spark, said) for spark, said in zip(sparks, answers, strict=True)}
    monkeypatch.setattr(NodeAccess, "channels", property(lambda self: channels))
    spec = tmp_path / "big.yaml"
    spec.write_text("name: big\nmodel: acme/big\n")
    argv = ("doctor", "-i", inventory, "--no-measure", "--for", spec)
    code, out, err = sparkfleet(*argv)
    assert code == 1, out + err
    assert "[disk-for-weights]" in out
    _, out, err = sparkfleet(*argv, "spark1")
    assert "acme/big (revision main) is not in the Hub cache of this machine or spark1" in err
    assert "[disk-for-weights]" not in out
    # A directory is where it is: it takes no space in the Hub's cache.
    spec.write_text("name: big\nmodel: /models/big\n")
    assert sparkfleet(*argv)[0] == 0
    _, out, err = sparkfleet(*argv, "spark1")
    assert "/models/big: is not a directory on this machine or spark1." in err
