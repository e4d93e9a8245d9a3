"""Copies that nodes have already: of other tools, of drafts, built-in models and directories."""

from __future__ import annotations

import pytest
from tiny_copy import MODEL, snapshot_of

from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.settings import Need
from sparkfleet.staging.storage_layout import place_of
from sparkfleet.tiny_models import cache as builtin

pytestmark = pytest.mark.integration


async def test_a_copy_of_another_tool_is_sent_without_the_hub(machines, staging, hub, held, wanted_files):
    """A snapshot as huggingface_hub leaves it: links to blobs, a reference, and no note of ours."""
    held("n1")
    notes = machines.cache("n1") / "models--tests--tiny" / ".sparkfleet"
    next(notes.iterdir()).unlink()
    need = Need(wanted=Need.model(MODEL, ()).wanted, nodes=("n2",), hub="never")
    await staging(need, "n1", "n2")
    assert snapshot_of(machines.cache("n2"), hub.commit) == wanted_files


async def test_a_copy_of_another_tool_without_a_tokenizer_is_compared_with_the_hub(
    hub, serve, held, machines, staging, wanted_files
):
    """`hf download --include '*.safetensors' config.json`: it counted as the whole model, for every node."""
    held("n1")
    folder = machines.cache("n1") / "models--tests--tiny"
    next((folder / ".sparkfleet").iterdir()).unlink()
    (folder / "snapshots" / hub.commit / "tokenizer.json").unlink()
    part = wanted_files.keys() - {"tokenizer.json"}
    need = Need.model(MODEL, ("n1",))
    (staged,) = await staging(need, "n1", endpoint="http://127.0.0.1:9")
    assert (staged.moved_bytes, snapshot_of(machines.cache("n1"), hub.commit).keys()) == (0, part)
    assert any("it has no tokenizer" in progress.text for progress in machines.heard)
    push = Need(wanted=need.wanted, nodes=("n2",), hub="never")
    await staging(push, "n1", "n2")
    assert snapshot_of(machines.cache("n2"), hub.commit).keys() == part

    await staging(need, "n1", endpoint=await serve(hub.app()))
    assert snapshot_of(machines.cache("n1"), hub.commit) == wanted_files
    assert [path for path, *_ in hub.asked if path.endswith(".safetensors")] == []
    assert f"/api/models/{MODEL}/revision/{hub.commit}" in [path for path, *_ in hub.asked]


async def test_a_copied_draft_is_compared_with_the_hub_once(
    hub, serve, held, machines, staging, wanted_files
):
    """Drafts have no tokenizer: each `apply` asked the Hub, for minutes if its packets were dropped."""
    held("n1")
    folder = machines.cache("n1") / "models--tests--tiny"
    next((folder / ".sparkfleet").iterdir()).unlink()
    (folder / "snapshots" / hub.commit / "tokenizer.json").unlink()
    del hub.files["tokenizer.json"]
    hub.asked.clear()  # of the pull that has made the copy
    need = Need.model(MODEL, ("n1",))
    for _ in range(2):
        (staged,) = await staging(need, "n1", endpoint=await serve(hub.app()))
        assert staged.moved_bytes == 0
    assert len([path for path, *_ in hub.asked if "/revision/" in path]) == 1


async def test_built_in_models_travel_too(machines, staging):
    source = builtin.path("tiny", machines.cache("n1") / ".builtin")
    source.mkdir(parents=True)
    (source / "model.safetensors").write_bytes(b"w" * 100_000)
    (source / "config.json").write_text("{}")
    (source / "tokenizer.json").symlink_to("config.json")
    (staged,) = await staging(Need.model("builtin:tiny", ("n1", "n2")), "n1", "n2")
    target = builtin.path("tiny", machines.cache("n2") / ".builtin")
    assert staged.paths == {"n1": str(source), "n2": str(target)}
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }
    assert builtin.is_built("tiny", machines.cache("n2") / ".builtin")


@pytest.mark.parametrize(
    ("name", "way"),
    [("builtin:tiny", "`python -m sparkfleet.tiny_models build tiny`"), ("/models/mine", "at the same path")],
)
async def test_a_directory_on_no_node_is_refused_with_the_way_to_get_it(staging, name, way):
    """A built-in model has no path that its user knows."""
    with pytest.raises(StagingError, match=f"{name} is on no node of the fleet") as refused:
        await staging(Need.model(name, ("n1", "n2")), "n1", "n2")
    assert way in refused.value.do


async def test_a_directory_copied_whole_but_not_yet_renamed_appears(machines, staging):
    test_file = "config.json"
    source = builtin.path("tiny", machines.cache("n1") / ".builtin")
    source.mkdir(parents=True)
    (source / test_file).write_text("{}")
    beside = place_of("builtin", "builtin:tiny", str(machines.cache("n2"))).root
    beside.mkdir(parents=True)
    (beside / test_file).write_text("{}")
    await staging(Need.model("builtin:tiny", ("n2",)), "n1", "n2")
    assert builtin.is_built("tiny", machines.cache("n2") / ".builtin")


async def test_a_directory_that_differs_is_never_overwritten(machines, staging):
    for node, text in (("n1", "{}"), ("n2", "[]")):
        directory = builtin.path("tiny", machines.cache(node) / ".builtin")
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(text)
    with pytest.raises(StagingError, match=r"config\.json differs from the file"):
        await staging(Need.model("builtin:tiny", ("n1", "n2")), "n1", "n2")
