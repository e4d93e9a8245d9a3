"""Custom workloads: their ports and nodes."""


def test_a_declared_port_of_another_deployment_is_not_planned_on_the_same_node(sparks, plan, ask):
    """Both were planned, and the second failed at its start."""
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 5005, "memory": "24 GiB"}
    tts, stt = ask("org/tts", "tts", **own), ask("org/stt", "stt", **own)
    together = plan(sparks(1), tts, stt)
    assert [one.name for one in together.deployments] == ["stt"]
    running = {"tts": plan(sparks(1), tts).of("tts")}
    (refused,) = plan(sparks(1), stt, running=running).refused
    assert [one.reason for one in refused.rejected] == ["tts has port 5005 of spark1"]
    assert refused.nearest == ("fits with another `port` (also in its `command`) than tts's",)
    assert plan(sparks(2), tts, stt).refused == ()
    other = stt.model_copy(update={"port": 5006})
    assert plan(sparks(1), other, running=running).refused == ()
    edited = tts.model_copy(update={"env": {"MARK": "new"}})
    assert plan(sparks(1), edited, running=running).refused == (), "its own generation before has the port"


def test_replicas_of_a_custom_workload_are_on_different_nodes_as_they_have_one_port(sparks, plan, ask):
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 5005, "memory": "24 GiB"}
    tts = ask("org/tts", "tts", replicas=2, **own)
    (refused,) = plan(sparks(1), tts).refused
    assert (
        "for more than 1 of 2 replicas, one per node as all listen on port 5005" in refused.rejected[0].reason
    )
    assert refused.nearest == ("fits with `replicas: 1`",)
    assert len(plan(sparks(2), tts).of("tts").groups) == 2


def test_without_a_node_that_may_be_used_a_custom_workload_is_refused_with_that(sparks, plan, ask):
    """As on one Spark that is drained."""
    tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="24 GiB")
    (refused,) = plan(sparks(1).model_copy(update={"nodes": (), "drained": ("spark1",)}), tts).refused
    assert refused.rejected[0].reason == "24 GiB declared, and no usable node has that much free"


def test_two_that_have_one_port_already_are_planned_again_where_they_are(sparks, plan, ask):
    """Each was refused for the other's port: no edit of either could be applied."""
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 5005, "memory": "24 GiB"}
    tts, stt = ask("org/tts", "tts", **own), ask("org/stt", "stt", **own)
    running = {one.name: plan(sparks(1), one).of(one.name) for one in (tts, stt)}
    for one in (tts, stt):
        again = plan(sparks(1), one, running=running)
        assert again.refused == ()
        assert again.of(one.name).groups == running[one.name].groups
    (refused,) = plan(sparks(1), ask("org/ocr", "ocr", **own), running=running).refused
    assert [one.reason for one in refused.rejected] == ["stt has port 5005 of spark1"]


def test_a_custom_workload_is_not_planned_on_the_gateways_port(sparks, plan, ask):
    """It was started and failed: 8000 is the gateway's default, and that of many servers."""
    own = {"engine": "custom", "image": "localhost/tts:1", "port": 8000, "memory": "24 GiB"}
    tts = ask("org/tts", "tts", **own)
    head = {"endpoint_ports": (("spark1", 8000),)}
    (refused,) = plan(sparks(1).model_copy(update=head), tts).refused
    assert [one.reason for one in refused.rejected] == ["the gateway has port 8000 of spark1"]
    assert refused.nearest == ("fits with another `port` (also in its `command`) than the gateway's",)
    (group,) = plan(sparks(2).model_copy(update=head), tts).of("tts").groups
    assert group.choice.candidate.shape.nodes == ("spark2",)


def test_a_container_on_a_node_without_a_gpu_does_not_ask_for_one(sparks, plan, ask):
    """`docker run --gpus all` failed there: "could not select device driver"."""
    tts = ask("org/tts", "tts", engine="custom", image="localhost/tts:1", port=5005, memory="4 GiB")
    spark = sparks(1)
    plain = spark.model_copy(update={"nodes": (spark.nodes[0].model_copy(update={"gpu": None}),)})
    chosen = [plan(fleet, tts).of("tts").groups[0].choice.candidate.device for fleet in (spark, plain)]
    assert chosen == ["cuda", "cpu"]
