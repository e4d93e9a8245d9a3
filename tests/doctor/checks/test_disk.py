"""Room on the disks for the weights of deployments."""

import json

import pytest

from sparkfleet.doctor import registry
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.snapshot import Needed
from sparkfleet.hostfacts.disk import ReadDisks

HUB = "/home/nvidia/.cache/huggingface/hub"


async def test_a_stored_model_in_another_letter_case_than_the_hubs_is_named(findings):
    sizes = {"weights_bytes": 10**9, "nodes": ("spark2",)}
    models = ("qwen/qwen3-8b", "Qwen/Qwen3-8B", "nobody/knows")
    needed = [Needed(deployment=f"m{n}", model=model, **sizes) for n, model in enumerate(models)]
    pinned = Needed(deployment="m3", model="Qwen/qwen3-0.6b", revision="a" * 40, **sizes)
    told = await findings(needed=[*needed, pinned, pinned])  # two variants of one model
    assert [(one.id, one.severity, one.what) for one in told] == [
        ("model-letter-case", "info", "m0: its model qwen/qwen3-8b is Qwen/Qwen3-8B at the Hub"),
        ("model-letter-case", "info", "m3: its model Qwen/qwen3-0.6b is Qwen/Qwen3-0.6B at the Hub"),
    ]
    assert f"`model: Qwen/Qwen3-0.6B@{'a' * 40}`" in told[1].do[0]


async def test_of_a_gguf_model_the_tag_stays(findings):
    name = {"model": "unsloth/qwen3.6-35b-a3b-gguf", "tag": "UD-Q4_K_XL"}
    (told,) = await findings(needed=[Needed(deployment="m", weights_bytes=10**9, **name)])
    assert "`model: unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL`" in told.do[0]


async def test_weights_that_do_not_fit(findings):
    needed = Needed(deployment="big", model="Qwen/Big", weights_bytes=4 * 10**12, nodes=("spark2",))
    (told,) = await findings(needed=[needed])
    assert (told.id, told.severity) == ("disk-for-weights", "error")
    assert "spark2: 3.2 TB are free" in told.what
    assert "4.4 TB" in told.what


async def test_weights_that_variants_share_are_counted_once(findings):
    """3.2 TB are free."""
    needed = Needed(deployment="big", model="Qwen/Big", weights_bytes=2 * 10**12, nodes=("spark2",))
    assert await findings(needed=[needed, needed.model_copy(update={"deployment": "same"})]) == []


async def test_weights_that_fit_on_no_node(findings):
    needed = Needed(deployment="big", model="Qwen/Big", weights_bytes=4 * 10**12)
    (told,) = await findings(needed=[needed])
    assert "no node has enough space: 3.2 TB on spark1, 3.2 TB on spark2 are free" in told.what


async def test_weights_that_fit_on_one_node_are_fine_if_no_node_is_pinned(sparks, findings):
    sparks[1].change(ReadDisks.argv, "3200000000000", "500000000000")
    assert await findings(needed=[Needed(deployment="big", model="Qwen/Big", weights_bytes=2 * 10**12)]) == []


async def test_weights_that_are_cached_need_no_space(sparks, findings):
    models = [["Qwen/Big", 4 * 10**12, True]]
    for spark in sparks:
        spark.change(ReadDisks.argv, '"models": []', f'"models": {json.dumps(models)}')
    assert await findings(needed=[Needed(deployment="big", model="Qwen/Big", weights_bytes=4 * 10**12)]) == []


GGUFS = {
    "m-Q4_K_M.gguf": 3 * 10**12,
    "UD-Q6_K/m-UD-Q6_K-00001-of-00002.gguf": 2 * 10**12,
    "UD-Q6_K/m-UD-Q6_K-00002-of-00002.gguf": 2 * 10**12,
    "mmproj-F16.gguf": 10**12,
}


@pytest.mark.parametrize(
    ("tag", "size", "missing"),
    [
        ("Q4_K_M", 4, False),
        ("UD-Q6_K", 5, False),
        ("Q8_0", 4, True),
        ("UD-Q6_K", 6, True),  # as if a shard was missing
    ],
)
async def test_of_a_gguf_model_the_files_of_its_tag_count(sparks, findings, tag, size, missing):
    """8 TB of the repository are cached, 3.2 TB are free. The whole repository counted for any of its tags."""
    models = [["org/m-GGUF", 8 * 10**12, False, GGUFS]]
    for spark in sparks:
        spark.change(ReadDisks.argv, '"models": []', f'"models": {json.dumps(models)}')
    one = Needed(deployment="m", model="org/m-GGUF", tag=tag, weights_bytes=size * 10**12)
    found = await findings(needed=[one])
    assert [one.id for one in found] == ["disk-for-weights"] * missing
    assert all(f"org/m-GGUF:{tag} {size}" in one.means for one in found)


async def test_a_gguf_repository_needs_no_reference_of_main(sparks, findings):
    """llama.cpp gets the path of a file, and staging gives each tag a reference of its own."""
    models = [["org/m-GGUF", 8 * 10**12, False, GGUFS]]
    for spark in sparks:
        spark.change(ReadDisks.argv, '"models": []', f'"models": {json.dumps(models)}')
    assert await findings() == []


async def test_two_tags_of_a_repository_are_two_models(findings):
    """3.2 TB are free."""
    one = Needed(
        deployment="m", model="org/m-GGUF", tag="Q4_K_M", weights_bytes=2 * 10**12, nodes=("spark2",)
    )
    assert await findings(needed=[one]) == []
    (told,) = await findings(needed=[one, one.model_copy(update={"tag": "Q5_K_M"})])
    assert "spark2: 3.2 TB are free, less than the 4.4 TB that weights need" in told.what


async def test_weights_whose_files_were_not_counted_are_not_called_missing(sparks, look, findings):
    models = [["Qwen/Big", None, True]]
    for spark in sparks:
        spark.change(ReadDisks.argv, '"models": []', f'"models": {json.dumps(models)}')
    needed = [
        Needed(deployment="big", model="Qwen/Big", weights_bytes=4 * 10**12, nodes=nodes)
        for nodes in (("spark2",), ())
    ]
    assert await findings(needed=needed) == []
    (told,) = [one for one in registry.examine(await look(needed=needed)) if one.id == "disk-for-weights"]
    assert told.severity == Severity.UNKNOWN


@pytest.mark.parametrize(
    ("hub", "locked", "do"),
    [
        (HUB, "/home/nvidia/.cache", "chown -R $USER /home/nvidia/.cache"),
        (HUB, "/home/nvidia/.cache/huggingface", "chown -R $USER /home/nvidia/.cache/huggingface"),
        (HUB, f"{HUB}/models--org--m", f"chown -R $USER {HUB}"),
        ("/data/hub", "/data/hub", "chown -R $USER /data/hub"),
        ("/data/hub", "/", "install -d -o $USER /data/hub"),
        ("/data/hub", "/home/nvidia/.cache", "chown -R $USER /home/nvidia/.cache"),
    ],
)
async def test_a_cache_of_root_has_the_command(sparks, findings, hub, locked, do):
    disks = json.loads(sparks[1].answers[ReadDisks.argv])
    places = disks["places"] | {"home": ["/home/nvidia", disks["places"]["root"][1]]}
    changed = {"hub": hub, "places": places, "locked": [locked, f"{hub}/.locks"]}
    sparks[1].answers[ReadDisks.argv] = json.dumps(disks | changed)
    (told,) = await findings()
    assert (told.id, told.severity, told.do) == ("caches-writable", "warning", (f"sudo {do}",))
    assert told.what == f"spark2: this user may not write in {locked} and 1 more"
