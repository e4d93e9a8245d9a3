"""Sources of a checkpoint's facts: this machine, the nodes in their order, what is known by name."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_channel import FakeChannel

from sparkfleet.checkpoints.remote_metadata import program
from sparkfleet.errors import FactError, NodeError
from sparkfleet.fleet.node_access import NodeAccess
from sparkfleet.fleet.planning.checkpoints import (
    checkpoints_of,
    checkpoints_on,
    find_checkpoint,
    places_of,
    search,
)
from sparkfleet.hostfacts.node import Gpu, NodeFacts, Processors, UnifiedMemory
from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import parse_inventory
from sparkfleet.staging.errors import ModelAbsent, ModelNotShown, StagingError
from sparkfleet.staging.hub_outline import AtHub

INVENTORY = """
fleet: home
head: spark1
nodes:
  spark1: {address: 192.168.1.11, user: nvidia}
  spark2: {address: 192.168.1.12, user: nvidia}
"""
KEY = 'host_key: "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"'
COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"
KNOWN = "Qwen/Qwen3.6-27B-FP8"
CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
    "vocab_size": 256, "max_position_embeddings": 512, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
ORDER = {
    "whole": {"config.json": 1 << 20},
    "begun": {},
    "header_bytes": 1 << 20,
    "suffixes": [".safetensors"],
}
SHAPES = {
    "model.embed_tokens": (256, 64),
    "model.layers.0.self_attn.q_proj": (64, 64),
    "model.layers.0.self_attn.k_proj": (32, 64),
    "model.layers.0.self_attn.v_proj": (32, 64),
    "model.layers.0.self_attn.o_proj": (64, 64),
    "model.layers.0.mlp.gate_proj": (128, 64),
    "model.layers.0.mlp.up_proj": (128, 64),
    "model.layers.0.mlp.down_proj": (64, 128),
}


def write(directory, *, weights=True, positions=512):
    """A checkpoint in a directory; `positions` tells one from another."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": positions}))
    if weights:
        header, at = {}, 0
        for name, (rows, columns) in SHAPES.items():
            end = at + 2 * rows * columns
            header[f"{name}.weight"] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, end]}
            at = end
        content = json.dumps(header).encode()
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(content).to_bytes(8, "little") + content)
            file.truncate(8 + len(content) + at)
    return directory


def cached(hub, name="Org/Name", **how):
    """The same in a cache of the Hub."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    return write(folder / "snapshots" / COMMIT, **how)


class Pretending(LocalChannel):
    """A node that is really this machine, with a Hub cache of its own."""

    def __init__(self, node, hub):
        super().__init__(node)
        self.hub = hub
        self.asked = 0

    async def run(self, argv, *, env=None, **more):
        self.asked += 1
        return await super().run(argv, env={**(env or {}), "HF_HUB_CACHE": str(self.hub)}, **more)


@pytest.fixture
def inventory():
    return parse_inventory(INVENTORY.replace("user: nvidia", f"user: nvidia, {KEY}"), "inventory.yaml")


@pytest.fixture
def nodes(tmp_path):
    return {name: Pretending(name, tmp_path / name) for name in ("spark1", "spark2")}


@pytest.fixture
def here(tmp_path):
    return tmp_path / "hub"


@pytest.fixture
def one(inventory, nodes):
    """The facts of one model, or the error."""

    async def find(model, places=("spark1", "spark2")):
        return (await search({model: places}, inventory, nodes))[model]

    return find


class TestHubIds:
    async def test_this_machine_first_and_then_nobody_is_asked(self, one, nodes, here):
        cached(here, positions=1)
        cached(nodes["spark1"].hub, positions=2)
        assert (await one("Org/Name")).max_positions == 1
        assert nodes["spark1"].asked == nodes["spark2"].asked == 0

    async def test_the_first_node_that_has_it(self, one, nodes):
        snapshot = cached(nodes["spark2"].hub)
        found = await one("Org/Name")
        assert (found.weights_known, found.id, found.revision) == (True, "Org/Name", COMMIT)
        assert found.path == snapshot
        cached(nodes["spark1"].hub, positions=1)
        assert (await one("Org/Name")).max_positions == 1
        assert (await one("Org/Name", ("spark2", "spark1"))).max_positions == 512

    async def test_weights_before_a_config(self, one, nodes, here):
        cached(here, weights=False, positions=1)
        assert (await one("Org/Name")).max_positions == 1
        cached(nodes["spark1"].hub, weights=False, positions=2)
        assert (await one("Org/Name")).max_positions == 1
        cached(nodes["spark2"].hub, positions=3)
        found = await one("Org/Name")
        assert (found.max_positions, found.weights_known) == (3, True)

    async def test_weights_on_a_node_before_what_is_known_by_name(self, one, nodes):
        assert not (await one(KNOWN)).weights_known
        cached(nodes["spark2"].hub, KNOWN)
        found = await one(KNOWN)
        assert (found.weights_known, found.bytes_on_disk < 1 << 20) == (True, True)

    async def test_a_download_under_way_on_a_node_is_no_error_where_the_name_is_known(self, one, nodes):
        for name in (KNOWN, "Org/Name"):
            (cached(nodes["spark1"].hub, name) / "model.safetensors").write_bytes(b"half")
        assert (await one(KNOWN)).max_positions == find_checkpoint(KNOWN).max_positions
        error = await one("Org/Name")
        assert isinstance(error, FactError)
        assert error.what.startswith("spark1:")
        assert "model.safetensors" in error.what

    async def test_what_is_damaged_here_is_an_error_unless_a_node_has_it_whole(self, one, nodes, here):
        (cached(here) / "model.safetensors").write_bytes(b"half")
        error = await one("Org/Name")
        assert isinstance(error, FactError)
        assert error.what.startswith(str(here))
        cached(nodes["spark2"].hub, positions=7)
        assert (await one("Org/Name")).max_positions == 7

    async def test_nobody_has_it(self, one):
        error = await one("openai/gpt-os-120b@v2")
        assert isinstance(error, FactError)
        assert (
            "openai/gpt-os-120b (revision v2) is not in the Hub cache of this machine, spark1 or spark2"
            in error.what
        )
        assert "`sparkfleet models pull openai/gpt-os-120b@v2`" in error.do
        assert "`hf download openai/gpt-os-120b --revision v2`" in error.do
        assert "openai/gpt-oss-120b" in error.do

    async def test_no_id_at_all_is_asked_of_nobody(self, one, nodes):
        error = await one("not an id")
        assert isinstance(error, FactError)
        assert nodes["spark1"].asked == 0


class TestDirectories:
    """Fake nodes here: a directory of a node that is really this machine would be this machine's."""

    @pytest.fixture
    def nodes(self):
        return {name: FakeChannel(name, {program(): '{"end": true}\n'}) for name in ("spark1", "spark2")}

    @pytest.fixture
    async def there(self, tmp_path, nodes):
        """A node that has /models/x: what a real one would say of it."""
        directory = write(tmp_path / "x")
        said = []
        channel = LocalChannel("spark2")
        order = {"wanted": [{"directory": str(directory)}], **ORDER}
        await channel.run(program(), stdin=json.dumps(order).encode(), on_output=said.append)
        await channel.close()
        answer = b"".join(said).decode().replace(str(directory), "/models/x")
        nodes["spark2"] = FakeChannel("spark2", {program(): answer})
        shutil.rmtree(directory)

    async def test_on_a_node(self, there, one):
        found = await one("/models/x")
        assert (found.weights_known, found.id, str(found.path)) == (True, "/models/x", "/models/x")

    async def test_nobody_has_it(self, one):
        error = await one("/models/x")
        assert isinstance(error, FactError)
        assert error.what == "/models/x: is not a directory on this machine, spark1 or spark2."
        assert "on a node" in error.do

    async def test_who_could_not_be_asked_is_told(self, one, nodes):
        nodes["spark1"] = FakeChannel("spark1", {program(): NodeError("spark1: no answer in 10 s.")})
        error = await one("/models/x")
        assert error.what == "/models/x: is not a directory on this machine or spark2."
        assert error.means == "spark1 could not be searched: no answer in 10 s."

    async def test_a_silent_node_does_not_hide_what_another_has(self, there, one, nodes):
        nodes["spark1"] = FakeChannel("spark1", {program(): NodeError("spark1: no answer in 10 s.")})
        assert (await one("/models/x")).weights_known

    def test_without_nodes(self):
        with pytest.raises(FactError, match=r"^/models/x: is not a directory on this machine\.") as caught:
            find_checkpoint("/models/x")
        assert "--assume" in caught.value.do


class TestWhoIsAsked:
    def test_pins_first_then_those_it_would_be_copied_from(self, inventory):
        def spec(**fields):
            return Deployment.model_validate_json(json.dumps({"name": "m", "model": "Org/Name", **fields}))

        assert places_of("Org/Name", [spec()], inventory) == ("spark1", "spark2")
        assert places_of("Org/Name", [spec(nodes=["spark2"])], inventory) == ("spark2", "spark1")
        assert places_of("Org/Name", [spec(nodes=["spark9"])], inventory) == ("spark1", "spark2")
        variants = [{"model": "Org/Name", "nodes": ["spark2"]}, {"model": "Org/Other"}]
        several = Deployment.model_validate_json(json.dumps({"name": "m", "variants": variants}))
        assert places_of("Org/Name", [several], inventory) == ("spark2", "spark1")
        assert places_of("Org/Other", [several], inventory) == ("spark1", "spark2")

    async def test_a_node_that_is_this_machine_is_not(self, nodes):
        inventory = parse_inventory("fleet: x\nhead: spark1\nnodes: {spark1: {address: local}}\n", "i.yaml")
        cached(nodes["spark1"].hub)
        found = (await search({"Org/Name": ("spark1",)}, inventory, nodes))["Org/Name"]
        assert isinstance(found, FactError)
        assert "of this machine, and not known by name" in found.what
        assert nodes["spark1"].asked == 0

    @pytest.mark.parametrize(
        ("typed", "known"),
        [
            ("google/gemma3-27b-it", "google/gemma-3-27b-it"),
            ("nvidia/GLM5.2-NVFP4", "nvidia/GLM-5.2-NVFP4"),
            ("mistralai/devstral-2-122b-instruct", "mistralai/Devstral-2-123B-Instruct-2512"),
            ("Qwen/Qwen3.6-36B-A3B", "Qwen/Qwen3.5-35B-A3B"),
        ],
    )
    async def test_known_names_that_are_nearly_the_same(self, inventory, nodes, typed, known):
        found = (await search({typed: ()}, inventory, nodes))[typed]
        assert isinstance(found, FactError)
        assert "not known by name" in found.what
        assert "sparkfleet models pull" in found.do or "hf download" in found.do
        assert known in found.do.partition("did you mean ")[2]

    async def test_each_once_for_everything(self, inventory, nodes):
        specs = [Deployment.model_validate({"name": n, "model": f"Org/{n}"}) for n in "abc"]
        for spec in specs:
            cached(nodes["spark2"].hub, spec.model)
        found = await checkpoints_on(specs, [spark()], inventory, nodes)
        assert list(found) == ["Org/a", "Org/b", "Org/c"]
        assert all(one.weights_known for one in found.values())
        assert (nodes["spark1"].asked, nodes["spark2"].asked) == (1, 1)

    async def test_of_drafts_what_is_whole(self, inventory, nodes, here):
        cached(here)
        cached(nodes["spark2"].hub, "Org/Draft")
        cached(nodes["spark1"].hub, "Org/Bare", weights=False)
        specs = [
            Deployment(
                name=name.lower(), model="Org/Name", speculation={"method": "draft", "draft": f"Org/{name}"}
            )
            for name in ("Draft", "Bare", "Nowhere")
        ]
        found = await checkpoints_on(specs, [spark()], inventory, nodes)
        assert sorted(found) == ["Org/Draft", "Org/Name"]
        assert sorted(checkpoints_of(specs, [spark()])) == ["Org/Name"]

    async def test_nobody_where_there_is_no_gpu(self, inventory, nodes):
        spec = Deployment.model_validate({"name": "m", "model": "Org/Name"})
        without = spark().model_copy(update={"gpu": None})
        assert await checkpoints_on([spec], [without], inventory, nodes) == {}
        assert checkpoints_of([spec], [without]) == {}
        assert nodes["spark1"].asked == 0


class TestVerbs:
    """The command line, where this machine has nothing and spark2 has it."""

    @pytest.fixture(autouse=True)
    def fleet(self, monkeypatch, nodes):
        async def surveyed(inventory, channels, without=()):
            return (spark(), spark().model_copy(update={"name": "spark2"}))

        cached(nodes["spark2"].hub, positions=4096)
        monkeypatch.setattr(NodeAccess, "channels", property(lambda self: nodes))
        monkeypatch.setattr("sparkfleet.fleet.planning.plan.survey", surveyed)

    @pytest.fixture
    def file(self, tmp_path):
        path = tmp_path / "inventory.yaml"
        path.write_text(INVENTORY.replace("user: nvidia", f"user: nvidia, {KEY}"))
        return path

    @pytest.fixture
    def deployment(self, tmp_path):
        path = tmp_path / "deployment.yaml"
        path.write_text("name: m\nmodel: Org/Name\nengine: vllm\nspeculation: none\n")
        return path

    def test_plan(self, sparkfleet, deployment, file):
        code, out, err = sparkfleet("plan", deployment, "-i", file)
        assert (code, err) == (2, ""), out
        assert "config alone" not in out
        assert "+ start  m" in out

    def test_apply_agrees(self, sparkfleet, deployment, file):
        code, out, err = sparkfleet("apply", deployment, "-i", file)
        assert code == 1
        assert "+ start  m" in out
        assert "Nothing was changed: this needs a confirmation" in err

    def test_dry_run(self, sparkfleet, deployment, file):
        code, out, _ = sparkfleet("apply", "--dry-run", deployment, "-i", file)
        assert code == 0
        assert "vllm" in out

    @pytest.mark.parametrize("verb", [("plan",), ("apply", "--dry-run")])
    def test_assuming_asks_nobody(self, sparkfleet, deployment, file, nodes, verb):
        code, _, err = sparkfleet(*verb, deployment, "-i", file, "--assume", "dgx-spark")
        assert code == 1
        assert "not in the Hub cache of this machine, and not known by name" in err
        assert nodes["spark1"].asked == nodes["spark2"].asked == 0

    def test_inspect(self, sparkfleet, file):
        code, out, err = sparkfleet("inspect", "Org/Name", "-i", file)
        assert (code, err) == (0, "")
        assert "from      the weight files" in out
        assert "4096" in out

    def test_inspect_finds_the_inventory_where_it_is(self, sparkfleet, file, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        assert json.loads(sparkfleet("inspect", "Org/Name", "--json")[1])["checkpoint"]["weights_known"]

    def test_inspect_without_one_looks_here_alone(self, sparkfleet, monkeypatch, tmp_path):
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        code, _, err = sparkfleet("inspect", "Org/Name")
        assert code == 1
        assert "of this machine, and not known by name" in err

    def test_inspect_of_what_is_here_reads_no_inventory(self, sparkfleet, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "inventory.yaml").write_text("nodes: [")
        assert sparkfleet("inspect", write(tmp_path / "x"))[0] == 0


def spark():
    return NodeFacts(
        name="spark1",
        memory=UnifiedMemory(total=130_600_000_000, available=115_000_000_000),
        processors=Processors(count=20, machine="aarch64"),
        gpu=Gpu(name="NVIDIA GB10", driver="580.142"),
        engines={},
    )


# --- at the Hub -------------------------------------------------------------------------------------------------------

FAKE_HUB = Path(__file__).parents[1] / "staging" / "fake_hub.py"
PLAIN = "name: chat\nmodel: tests/tiny\nengine: vllm\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A directory that a Hub on loopback serves as `tests/tiny`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    write(tmp_path / "repository")
    (tmp_path / "chat.yaml").write_text(PLAIN)
    process = subprocess.Popen(
        [sys.executable, str(FAKE_HUB), "127.0.0.1", str(tmp_path / "repository")],
        stdout=subprocess.PIPE,
        text=True,
    )
    monkeypatch.setenv("HF_ENDPOINT", process.stdout.readline().strip())
    yield tmp_path / "repository"
    process.kill()
    process.communicate()


def test_inspect_reads_headers_at_the_hub(sparkfleet, repository):
    code, out, _ = sparkfleet("inspect", "tests/tiny")
    assert code == 0
    assert "exact, from the Hub's safetensors headers at revision 0123456" in out
    code, out, _ = sparkfleet("inspect", "tests/tiny", "--json")
    size = (repository / "model.safetensors").stat().st_size
    assert json.loads(out)["checkpoint"]["bytes_on_disk"] == size


def test_plan_has_exact_sizes_from_the_hub_and_names_their_origin(sparkfleet, repository, two_sparks):
    plan = ("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    _, out, err = sparkfleet(*plan)
    assert err == ""
    assert "tests/tiny: exact, from the Hub's safetensors headers at revision 0123456" in " ".join(
        out.split()
    )
    assert "config alone" not in out
    _, again, _ = sparkfleet(*plan, "--offline")
    assert again == out


def test_offline_nothing_is_asked(sparkfleet, repository, two_sparks):
    code, _, err = sparkfleet("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark", "--offline")
    assert code == 1
    assert "is not in the Hub cache of this machine" in err
    assert "0123456" not in err


@pytest.mark.parametrize("verb", ["inspect", "plan"])
def test_what_is_known_by_name_needs_no_hub(sparkfleet, repository, two_sparks, monkeypatch, verb):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (repository.parent / "chat.yaml").write_text(PLAIN.replace("tests/tiny", KNOWN))
    plan = ("plan", "chat.yaml", "-i", two_sparks, "--assume", "dgx-spark")
    code, out, err = sparkfleet(*plan) if verb == "plan" else sparkfleet("inspect", KNOWN)
    assert (code, err) == (0 if verb == "inspect" else 2, "")
    assert "config alone, estimated: http://127.0.0.1:9 is not reachable" in " ".join(out.split())


def test_a_name_that_the_hub_does_not_have(sparkfleet, repository):
    code, _, err = sparkfleet("inspect", "tests/absent")
    assert code == 1
    assert "the Hub has no model tests/absent, or it is private" in err
    assert "hf auth login" in err


def test_a_model_of_the_hub_that_writes_no_text_is_refused_with_its_reason(monkeypatch):
    refusal = FactError("the Hub:config.json: cannot be planned, by its file modules.json.", do="Deploy it.")
    monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, refusal))
    with pytest.raises(FactError, match=r"by its file modules\.json"):
        find_checkpoint("nobody/has-this-at-all")


class TestRefusedByTheHub:
    """Names without files anywhere, and what the Hub answers about them."""

    TYPO = "Qwen/Qwen3.6-27B-FP"

    @pytest.fixture
    def answered(self, monkeypatch):
        def answer(kind):
            reason = kind("the Hub has no model of that name, or it is private.")
            monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, reason))

        return answer

    @pytest.mark.parametrize("kind", [ModelAbsent, ModelNotShown])
    async def test_a_typo_in_a_published_name(self, one, answered, kind):
        answered(kind)
        error = await one(self.TYPO)
        assert isinstance(error, FactError)
        assert error.what.startswith("the Hub has no model")
        assert error.do.startswith("Did you mean Qwen/Qwen3.6-27B-FP8")
        assert "hf download" not in error.do

    async def test_files_on_a_node_count_more(self, one, answered, nodes):
        answered(ModelAbsent)
        cached(nodes["spark2"].hub, self.TYPO, weights=False)
        assert (await one(self.TYPO)).max_positions == 512

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            (KNOWN, ModelAbsent),
            (KNOWN, ModelNotShown),
            ("me/Qwen3.6-27B-mine", ModelNotShown),
            (TYPO, StagingError),
        ],
    )
    async def test_a_published_name_and_a_private_model_are_planned(self, one, answered, name, kind):
        answered(kind)
        found = await one(name)
        assert found.id == name
        assert "the Hub has no model" in found.origin

    async def test_offline_the_pattern_and_the_format_are_named(self, one):
        assert (await one(self.TYPO)).origin == (
            "known by the pattern of Qwen/Qwen3.5-27B only; format assumed: BF16"
        )
        assert (await one("unsloth/Qwen3.6-27B-NVFP4")).origin.endswith("format by its name: NVFP4")
        assert not (await one(KNOWN)).origin


@pytest.mark.parametrize("name", ["nope", "a" * 300, f"org/{'a' * 300}", f"/{'a' * 300}"])
def test_inspect_of_a_name_that_none_has(sparkfleet, name):
    """A long one ended with a traceback, and one without an owner had `hf download nope` as its remedy."""
    code, _, err = sparkfleet("inspect", name, "--offline")
    assert (code, "hf download" in err) == (1, False)
    assert name != "nope" or "Give ORG/MODEL" in err
