"""Room on the disks for the weights of deployments."""

import json

from sparkfleet.doctor import registry
from sparkfleet.doctor.findings import Severity
from sparkfleet.doctor.snapshot import Needed
from sparkfleet.hostfacts.disk import ReadDisks


async def test_weights_that_do_not_fit(findings):
    needed = Needed(deployment="big", model="Qwen/Big", weights_bytes=4 * 10**12, nodes=("spark2",))
    (told,) = await findings(needed=[needed])
    assert (told.id, told.severity) == ("disk-for-weights", "error")
    assert "spark2: 3.2 TB are free" in told.what
    assert "4.4 TB" in told.what


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


async def test_a_cache_of_root_has_the_command(sparks, findings):
    hub = "/home/nvidia/.cache/huggingface/hub"
    for locked, do in (
        ("/home/nvidia/.cache/huggingface", f"sudo install -d -o $USER {hub}"),
        (f"{hub}/models--org--m", f"sudo chown -R $USER {hub}"),
    ):
        sparks[1].answers[ReadDisks.argv] = json.dumps(
            json.loads(sparks[0].answers[ReadDisks.argv]) | {"locked": [locked, f"{hub}/.locks"]}
        )
        (told,) = await findings()
        assert (told.id, told.severity, told.do) == ("hub-writable", "warning", (do,))
        assert told.what == f"spark2: this user may not write in {locked} and 1 more"
