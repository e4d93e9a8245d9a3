import json

from sparkfleet.telemetry.targets import ScrapeTarget, target_groups


def test_a_target_has_its_labels() -> None:
    engine = ScrapeTarget(
        job="vllm",
        address="10.0.0.1:8001",
        path="/metrics/",
        node="spark1",
        deployment="qwen",
        group="qwen-0",
        rank=0,
    )
    assert target_groups([engine]) == [
        {
            "targets": ["10.0.0.1:8001"],
            "labels": {
                "__metrics_path__": "/metrics/",
                "job": "vllm",
                "node": "spark1",
                "deployment": "qwen",
                "group": "qwen-0",
                "rank": "0",
            },
        }
    ]


def test_labels_without_a_value_are_left_out() -> None:
    (group,) = target_groups([ScrapeTarget(job="controller", address="127.0.0.1:9000")])
    assert group["labels"] == {"__metrics_path__": "/metrics", "job": "controller"}


def test_the_order_does_not_depend_on_the_order_of_what_is_given() -> None:
    targets = [
        ScrapeTarget(job=job, address=f"h:{port}", deployment=name)
        for job in ("b", "a")
        for name in ("y", "x")
        for port in (2, 1)
    ]
    assert target_groups(targets) == target_groups(list(reversed(targets)))


def test_it_is_what_http_sd_reads() -> None:
    """A JSON list of objects with `targets`, a list of strings, and `labels`, from strings to strings."""
    document = json.loads(json.dumps(target_groups([ScrapeTarget(job="a", address="h:1", rank=3)])))
    assert isinstance(document, list)
    for element in document:
        assert set(element) == {"targets", "labels"}
        assert all(isinstance(target, str) for target in element["targets"])
        assert all(isinstance(text, str) for pair in element["labels"].items() for text in pair)


def test_no_targets_is_an_empty_list() -> None:
    assert target_groups([]) == []
