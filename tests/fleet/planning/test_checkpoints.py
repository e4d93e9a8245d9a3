"""Sources of a checkpoint's facts: this machine, the nodes in their order, what is known by name."""

import json
import shutil

import pytest
from fake_channel import FakeChannel
from found_checkpoints import COMMIT, INVENTORY, KEY, KNOWN, ORDER, Pretending, cached, spark, write

from sparkfleet.checkpoints.remote_metadata import program
from sparkfleet.errors import FactError, NodeError
from sparkfleet.fleet.planning.checkpoints import (
    checkpoints_of,
    checkpoints_on,
    find_checkpoint,
    places_of,
    search,
)
from sparkfleet.remote.local import LocalChannel
from sparkfleet.specs.deployment import Deployment
from sparkfleet.specs.load import parse_inventory
from sparkfleet.staging.errors import ModelAbsent, ModelGated, ModelMiscased, ModelNotShown, StagingError
from sparkfleet.staging.hub_outline import AtHub


@pytest.fixture
def inventory():
    return parse_inventory(INVENTORY.replace("user: nvidia", f"user: nvidia, {KEY}"), "inventory.yaml")


@pytest.fixture
def nodes(tmp_path):
    return {name: Pretending(name, tmp_path / name) for name in ("spark1", "spark2")}


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """This machine's cache of the Hub, which is empty; and no fleet runs here."""
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
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

    @pytest.mark.parametrize(
        ("typed", "known", "example"),
        [
            (
                "unsloth/qwen3.6-35b-a3b-GGUF",
                "Known are UD-Q4_K_XL (21 GB), UD-Q8_K_XL (36 GB); there may be others.",
                "`unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL`",
            ),
            ("ggml-org/gpt-oss-120b-GGUF", "Known are MXFP4 (63 GB)", "`ggml-org/gpt-oss-120b-GGUF:MXFP4`"),
            ("org/New-GGUF", "None of its tags is known", "`org/New-GGUF:Q4_K_M`"),
        ],
    )
    async def test_a_gguf_repository_without_a_tag_has_those_that_are_known(
        self, inventory, nodes, typed, known, example
    ):
        """It was "not known by name", with `hf download` of the whole repository."""
        found = (await search({typed: ()}, inventory, nodes))[typed]
        assert isinstance(found, FactError)
        assert found.what == f"{typed}: the name has no tag, and its files are not on this machine."
        assert known in found.means
        assert example in found.do

    async def test_a_gguf_in_another_letter_case_is_an_error_with_its_tag(self, inventory, nodes):
        """It was planned by the pattern of another model."""
        typed = "unsloth/qwen3.6-35b-a3b-gguf:ud-q4_k_xl"
        found = (await search({typed: ()}, inventory, nodes))[typed]
        assert isinstance(found, FactError)
        assert found.do == "Write unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL."

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


async def test_a_draft_of_no_known_name_is_refused_as_a_model(tmp_path, inventory, nodes):
    """It was planned and started as a small Llama."""
    path = write(tmp_path / "head")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLMEagle3"]}))
    spec = Deployment.model_validate({"name": "m", "model": str(path)})
    with pytest.raises(FactError, match="is a draft, by its class LlamaForCausalLMEagle3") as caught:
        checkpoints_of([spec], [spark()])
    assert f"{{method: eagle3, draft: {path}}}" in caught.value.do
    with pytest.raises(FactError, match="is a draft"):
        await checkpoints_on([spec], [spark()], inventory, nodes)


def test_a_model_of_the_hub_that_writes_no_text_is_refused_with_its_reason(monkeypatch):
    refusal = FactError("the Hub:config.json: cannot be planned, by its file modules.json.", do="Deploy it.")
    monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, refusal))
    with pytest.raises(FactError, match=r"by its file modules\.json"):
        find_checkpoint("nobody/has-this-at-all")


def test_a_format_that_the_hub_names_counts_more_than_what_the_name_is_like(monkeypatch):
    """It was planned as INT4, by its name."""
    unsupported = FactError("the Hub:config.json: the quantisation method 'torchao' is not supported.")
    monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, unsupported))
    with pytest.raises(FactError, match="torchao"):
        find_checkpoint("someone/Qwen3.6-27B-torchao-int4")


def test_a_gated_model_is_planned_by_its_name_with_what_lets_it_be_fetched(monkeypatch):
    """Its plan named the refusal alone, and `apply` ended at the download."""
    reason = ModelGated("it is gated.", do="Accept the licence at PAGE, then run `hf auth login`.")
    monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, reason))
    found = find_checkpoint("meta-llama/Llama-3.1-8B-Instruct")
    assert found.origin.endswith("it is gated. Accept the licence at PAGE, then run `hf auth login`.")


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

    @pytest.mark.parametrize("name", [KNOWN.lower(), "me/mine"])
    async def test_another_case_than_the_hubs_is_an_error_with_the_name(self, one, monkeypatch, name):
        reason = ModelMiscased(f"{name} is another at the Hub.", do="Write another.")
        monkeypatch.setattr("sparkfleet.fleet.planning.checkpoints.at_hub", lambda _: AtHub(None, reason))
        error = await one(name)
        assert isinstance(error, FactError)
        assert (error.what, error.do) == (reason.what, "Write another.")

    @pytest.mark.parametrize("revision", ["", "@main"])
    async def test_without_the_hub_another_case_of_a_published_name_is_one_too(self, one, revision):
        error = await one(KNOWN.lower() + revision)
        assert isinstance(error, FactError)
        assert error.what == f"{KNOWN.lower()} is {KNOWN} at the Hub."
        assert error.do == f"Write {KNOWN}."

    async def test_files_of_a_published_name_in_another_case_count_more(self, one, nodes):
        cached(nodes["spark2"].hub, "qwen/qwen3-32b", weights=False)
        assert (await one("qwen/qwen3-32b")).id == "qwen/qwen3-32b"

    async def test_files_under_the_name_in_another_case_count_more(self, one, answered, nodes):
        answered(ModelMiscased)
        cached(nodes["spark2"].hub, self.TYPO, weights=False)
        assert (await one(self.TYPO)).max_positions == 512

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
        assert (await one("someone/Qwen3.6-27B-NVFP4")).origin.endswith("format by its name: NVFP4")
        assert not (await one(KNOWN)).origin
