"""Fields of a deployment, resolution of its variants, and every message of a refusal."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import get_args

import pytest
from deployment_problems import problems, with_line
from pydantic import ValidationError

from sparkfleet.specs.deployment import Constraints, Deployment, Method, SpeculationChoice, VariantEntry
from sparkfleet.specs.load import parse_deployment, to_yaml
from sparkfleet.specs.parallel import Parallel

EXAMPLES = Path(__file__).parents[0] / "examples"
QWEN235B = (EXAMPLES / "deployment-qwen235b.yaml").read_text()
VARIANTS = (EXAMPLES / "deployment-variants.yaml").read_text()
CUSTOM = (EXAMPLES / "deployment-custom.yaml").read_text()


def test_defaults() -> None:
    deployment = parse_deployment("name: x\nmodel: builtin:tiny")
    (variant,) = deployment.resolved()
    assert (deployment.objective, deployment.license, deployment.needs, deployment.keys) == (
        "interactive",
        "any",
        (),
        None,
    )
    assert (variant.model, variant.engine, variant.runtime, variant.health) == (
        "builtin:tiny",
        "auto",
        "auto",
        None,
    )
    assert (variant.context, variant.concurrency, variant.parallel, variant.replicas) == (None,) * 4
    assert variant.speculation == SpeculationChoice(method="auto")
    assert (variant.image, variant.memory, variant.memory_bytes, variant.port) == (None,) * 4
    assert (variant.engine_args, variant.nodes, variant.command, dict(variant.env)) == ((), (), (), {})


def external(line: str) -> str:
    return f"name: x\nmodel: builtin:tiny\nexternal:\n  - {{{line}}}\n"


def test_external_endpoints() -> None:
    urls = (
        "https://api.example.org/v1",
        "http://127.0.0.1:8080",
        "http://192.168.1.20:11434/v1/",
        "http://[fd00::1]:8080/v1",
        "http://nas:8080/v1",
        "http://nas.lan/v1",
    )
    for url in urls:
        deployment = parse_deployment(external(f'url: "{url}", model: qwen3:8b, key_file: /etc/key'))
        assert parse_deployment(to_yaml(deployment)) == deployment
        (found,) = deployment.external
        assert (found.url, found.model, found.key_file, found.when) == (
            url,
            "qwen3:8b",
            "/etc/key",
            "unavailable",
        )
        assert found.context is found.concurrency is found.vision is found.tools is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "url: http://api.example.org/v1, model: m",
            "http to api.example.org, which is not in the owner's network",
        ),
        ("url: http://8.8.8.8/v1, model: m", "http to 8.8.8.8"),
        ('url: "https://me:secret@api.example.org/v1", model: m', "a base URL such as"),
        ('url: "https://api.example.org/v1?key=1", model: m', "a base URL such as"),
        ("url: https://api.example.org:99999/v1, model: m", "no usable host or port"),
        ("url: ftp://nas/v1, model: m", "a base URL such as"),
        ("url: https://api.example.org/v1", "model"),
        ("url: https://api.example.org/v1, model: m, key: sk-1", "key"),
        ("url: https://api.example.org/v1, model: m, key_file: key", "an absolute path"),
        ("url: https://api.example.org/v1, model: m, when: always", "when"),
    ],
)
def test_external_endpoints_that_cannot_be_used(line: str, expected: str) -> None:
    found = problems(external(line))
    assert len(found) <= 3
    assert expected in found[0]
    assert not any("sk-1" in line for line in found)


def test_qwen235b() -> None:
    (variant,) = parse_deployment(QWEN235B).resolved()
    assert variant.parallel == Parallel(tp=2, ep=2)
    assert (variant.model, variant.context, variant.concurrency) == (
        "Qwen/Qwen3-235B-A22B-GPTQ-Int4",
        32768,
        4,
    )


def test_numbers_are_text_as_they_are_written() -> None:
    """`--seed 7` of a shell has no quotes either; "3.10" and "0700" must not become 3.1 and 700."""
    text = (
        "engine_args: [--seed, 7, --scale, 3.10, --top=1]\nenv: {MASK: 0700, LARGE: 1e10, HEX: 0x1F, NO: no}"
    )
    (variant,) = parse_deployment(f"name: x\nmodel: a/b\n{text}").resolved()
    assert variant.engine_args == ("--seed", "7", "--scale", "3.10", "--top=1")
    assert dict(variant.env) == {"MASK": "0700", "LARGE": "1e10", "HEX": "0x1F", "NO": "no"}
    command = "engine: custom\nmemory: 1 GiB\nmodel: a/b\nport: 8000\ncommand: [serve, --port, 8000]"
    assert parse_deployment(f"name: x\n{command}").resolved()[0].command == ("serve", "--port", "8000")


def test_variants_override_the_deployment() -> None:
    fp8, nvfp4 = parse_deployment(VARIANTS).resolved()
    assert (fp8.engine, fp8.context, dict(fp8.env), fp8.nodes) == ("sglang", 32768, {"A": "1", "B": "1"}, ())
    assert (nvfp4.engine, nvfp4.context, nvfp4.nodes) == ("vllm", 8192, ("spark2",))
    assert dict(nvfp4.env) == {"A": "1", "B": "2", "C": "3"}
    assert (fp8.speculation, nvfp4.speculation) == (
        SpeculationChoice(method="nextn", tokens=5),
        SpeculationChoice(method="mtp", tokens=3),
    )
    for variant in (fp8, nvfp4):
        assert (variant.engine_args, variant.replicas, variant.runtime) == (
            ("--enable-prefix-caching",),
            1,
            "container",
        )


def test_a_variant_may_go_back_to_auto() -> None:
    text = "name: x\nspeculation: mtp\nengine: vllm\nvariants: [{model: a/b, speculation: auto, engine: auto}, {model: a/c}]"
    first, second = parse_deployment(text).resolved()
    assert (first.speculation.method, first.engine) == ("auto", "auto")
    assert (second.speculation.method, second.engine) == ("mtp", "vllm")


def test_a_variant_can_say_what_a_deployment_can() -> None:
    assert set(VariantEntry.model_fields) == {"model", *Constraints.model_fields}


def test_custom() -> None:
    (variant,) = parse_deployment(CUSTOM).resolved()
    assert variant.memory_bytes == 24 * 2**30
    assert (variant.command, variant.port, variant.health) == (
        ("serve", "--port", "5005"),
        5005,
        "/v1/health",
    )


def test_only_a_custom_workload_is_asked_if_its_model_is_copied() -> None:
    (variant,) = parse_deployment(CUSTOM + "stage_model: true\n").resolved()
    assert variant.stage_model
    assert not parse_deployment(CUSTOM).resolved()[0].stage_model
    assert problems("name: x\nmodel: a/b\nstage_model: true") == [
        "d.yaml:3: stage_model: given, but only `engine: custom` has it. Expected none."
    ]


@pytest.mark.parametrize("text", [QWEN235B, VARIANTS, CUSTOM])
def test_it_travels(text: str) -> None:
    deployment = parse_deployment(text)
    assert Deployment.model_validate_json(deployment.model_dump_json()) == deployment
    assert pickle.loads(pickle.dumps(deployment)) == deployment
    assert parse_deployment(to_yaml(deployment)) == deployment
    assert hash(parse_deployment(text)) == hash(deployment)


@pytest.mark.parametrize("method", get_args(Method))
def test_every_method_may_stand_alone(method: str) -> None:
    assert parse_deployment(with_line(f"speculation: {method}")).speculation == SpeculationChoice(
        method=method
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "memory: 1 GiB\nport: 80",
            ["image: missing. `engine: custom` requires an image or a command."],
        ),
        (
            "image: a\ncommand: [b]",
            [
                'memory: missing. `engine: custom` requires the memory per rank, such as "24 GiB".',
                "port: missing. `engine: custom` requires the port on which it listens.",
            ],
        ),
        (
            "memory: 1 GiB\nport: 80\nruntime: container\ncommand: [b]",
            ["image: missing. `engine: custom` requires the image of the container."],
        ),
        (
            "memory: 1 GiB\nport: 80\nruntime: process",
            ["command: missing. `engine: custom` requires the command of the process."],
        ),
        (
            "memory: 1 GiB\nport: 80\nimage: a\nparallel: {tp: 2}\nspeculation: mtp\nengine_args: [a]",
            [
                "parallel: given, but a custom workload is not split. Expected none.",
                "speculation: given, but a custom workload has its own settings. Expected none.",
                "engine_args: given for `engine: custom`. Expected these arguments in `command`.",
            ],
        ),
    ],
)
def test_a_wrong_custom_workload(given: str, expected: list[str]) -> None:
    found = problems(f"name: x\nmodel: a/b\nengine: custom\n{given}")
    assert [line.partition(": ")[2] for line in found] == expected


def test_a_wrong_variant_is_named() -> None:
    text = "name: x\nport: 80\nvariants:\n  - model: a/b\n  - model: a/c\n    engine: custom\n    image: a"
    assert problems(text) == [
        'd.yaml:5: variants[1].memory: missing. `engine: custom` requires the memory per rank, such as "24 GiB".'
    ]


def test_neither_model_nor_variants() -> None:
    assert problems("name: x") == [
        "d.yaml:1: `model` or `variants`: neither is given. Expected exactly one of them."
    ]


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-30B-A3B",
        "Qwen/Qwen3-30B-A3B@main",
        "a/b@refs/pr/1",
        "a/b@0123456789abcdef",
        "builtin:tiny",
        "/models/Qwen3.6-27B-FP8",
        "/models/dir/",
        "unsloth/Qwen3-30B-A3B-GGUF:UD-Q4_K_XL",
        "a/b@main:q4_k_m",
        "/models/a-Q4_K_M.gguf",
    ],
)
def test_a_model(model: str) -> None:
    assert parse_deployment(f"name: x\nmodel: {model}").model == model


@pytest.mark.parametrize(
    "model",
    [
        "gpt2", "a/b/c", "a/b@", "../b", "a/..", "a/b@../x", "builtin:", "builtin:Tiny", "./dir", "/a/../b", "/", "/a//b",
        "~/models", "a/b;c", "hf://a/b", "/a b", "https://host/a/b", "-a/b", "a/b\\u2028",
        "a/b:", "a/b:Q4:K", "a/b:-x", "a:Q4",
    ],
)  # fmt: skip
def test_no_model(model: str) -> None:
    (found,) = problems(f'name: x\nmodel: "{model}"')
    assert found.startswith("d.yaml:2: model: found ")
    small = ', such as "builtin:tiny"' if model == "builtin:Tiny" else ""
    assert found.endswith(
        'Expected a Hub id "org/name", "org/name@revision" or "org/name:TAG" (a GGUF model), "builtin:NAME", or an'
        f" absolute path{small}."
    )


@pytest.mark.parametrize(
    "image",
    ["vllm/vllm-openai:v0.19", "scitrera/dgx-spark-sglang:0.5.12", "localhost:5000/a", "h.example/x@sha256:" + "0" * 64],
)  # fmt: skip
def test_an_image(image: str) -> None:
    assert parse_deployment(with_line(f"image: {image}")).image == image


@pytest.mark.parametrize("image", ["a b", "-v/x", "a:b:c", "a@sha256:0", "a/$(id)", "", "a//b"])
def test_no_image(image: str) -> None:
    (found,) = problems(with_line(f'image: "{image}"'))
    assert found.startswith("d.yaml:3: image: found ")


@pytest.mark.parametrize("name", ["qwen3-235b", "a", "qwen3.6-27b_x", "0" * 63])
def test_a_public_name(name: str) -> None:
    assert parse_deployment(f'name: "{name}"\nmodel: a/b').name == name


@pytest.mark.parametrize("name", ["", "Qwen", "-a", "a/b", "a b", "0" * 64, "a\\n"])
def test_no_public_name(name: str) -> None:
    (found,) = problems(f'name: "{name}"\nmodel: a/b')
    assert found.startswith("d.yaml:1: name: found ")


@pytest.mark.parametrize(
    ("size", "expected"),
    [("24 GiB", 25769803776), ("24GiB", 25769803776), ("1.5 GB", 1_500_000_000), ("512 MiB", 2**29), ("0.5 TB", 5 * 10**11)],
)  # fmt: skip
def test_a_size(size: str, expected: int) -> None:
    text = f"engine: custom\nport: 80\nimage: a\nmemory: {size}"
    assert parse_deployment(with_line(text)).memory_bytes == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("idle: 600", "`on_demand: true`"),
        ("on_demand: true\nidle: 5", "idle"),
        ("on_demand: true\nstandby: true", "standby"),
        ("on_demand: true\nexternal: [{url: 'https://api.example.com/v1', model: m}]", "external"),
    ],
)
def test_fields_of_what_is_on_demand_that_contradict_it(given: str, expected: str) -> None:
    (found,) = problems(f"name: x\nmodel: a/b\n{given}")
    assert expected in str(found)


def test_secrets_are_not_shown() -> None:
    found = problems(with_line("env: {HF_TOKEN: [4242], OTHER: \"4242\\n\", BAD-NAME: '4242'}"))
    assert [line.split(":")[2] for line in found] == [" env.HF_TOKEN", " env.OTHER", " env.BAD-NAME"]
    assert "4242" not in "".join(found)
    assert "4242" not in repr(parse_deployment(with_line("env: {HF_TOKEN: '4242'}")).resolved())
    with pytest.raises(ValidationError) as caught:
        Deployment.model_validate_json('{"name": "x", "model": "a/b", "env": {"HF_TOKEN": 4242}}')
    assert "4242" not in str(caught.value)


def test_kv_on_the_disk() -> None:
    (variant,) = parse_deployment('name: x\nmodel: builtin:tiny\nkv_disk: "100 GB"').resolved()
    assert variant.kv_disk_bytes == 100 * 10**9
    (plain,) = parse_deployment("name: x\nmodel: builtin:tiny").resolved()
    assert plain.kv_disk_bytes is None


@pytest.mark.parametrize("given", ["100", "0 GB", "-1 GB", "true", "many GB", "100 GB/s"])
def test_kv_on_the_disk_has_a_size_with_its_unit(given: str) -> None:
    (problem,) = problems(f"name: x\nmodel: builtin:tiny\nkv_disk: {given}")
    assert "kv_disk" in problem


def test_a_custom_workload_has_no_kv_on_the_disk() -> None:
    (problem,) = problems(f"{CUSTOM}\nkv_disk: 10 GB\n")
    assert "kv_disk: given, but a custom workload has its own cache" in problem


class TestSharedKv:
    def test_it_divides_tp(self) -> None:
        spec = Deployment.model_validate(
            {"name": "m", "model": "o/m", "parallel": {"tp": 4, "dcp": 2}}, strict=False
        )
        assert spec.resolved()[0].parallel == Parallel(tp=4, dcp=2)
        assert Parallel(dcp=8).tp is None

    @pytest.mark.parametrize(
        ("tp", "dcp", "expected"),
        [(4, 3, "1, 2 or 4"), (2, 4, "1 or 2"), (1, 2, "1"), (6, 4, "1, 2, 3 or 6")],
    )
    def test_another_number_is_refused_with_those_that_do(self, tp: int, dcp: int, expected: str) -> None:
        with pytest.raises(ValidationError) as error:
            Parallel(tp=tp, dcp=dcp)
        assert f"{dcp} does not divide tp: {tp}. Expected {expected}." in str(error.value)
