"""`docker run` as docker reads it: options, image, command."""

import pytest

from sparkfleet.fleet.conversion.container_line import ContainerLine, container_of


def container(text, **variables):
    return container_of(text.split(), variables)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("docker run img", ContainerLine((), "img")),
        (
            "sudo docker run --rm -it --gpus all --ipc=host img cmd -x",
            ContainerLine(("cmd", "-x"), "img", is_interactive=True),
        ),
        (
            "podman run -d -p 8000:8000 --name v --shm-size 10g img:tag a",
            ContainerLine(("a",), "img:tag", name="v"),
        ),
        ("docker container run -dit img a", ContainerLine(("a",), "img", is_interactive=True)),
        ("docker run --privileged --ulimit memlock=-1 img", ContainerLine((), "img")),
        (
            "docker run --entrypoint /bin/bash img -c x",
            ContainerLine(("/bin/bash", "-c", "x"), "img", has_entrypoint=True),
        ),
        ("docker run --env-file e.env img", ContainerLine((), "img", unread=("e.env",))),
        (
            "docker run -e A=1 --env B=x=y -eC=2 -e D -e E img",
            ContainerLine((), "img", {"A": "1", "B": "x=y", "C": "2", "D": "d"}),
        ),
        (
            "docker run -v /models/m:/model:ro -v cache --mount type=bind,source=/a,target=/b img",
            ContainerLine((), "img", mounts={"/model": "/models/m", "/b": "/a"}),
        ),
        (
            "docker exec -e M=1 -it name bash -c x",
            ContainerLine(("bash", "-c", "x"), env={"M": "1"}, name="name", is_running=True),
        ),
        (
            "./launch-cluster.sh -t vllm-node -n 10.0.0.1,10.0.0.2 -e A=1 --solo exec vllm serve m",
            ContainerLine(("vllm", "serve", "m"), "vllm-node", {"A": "1"}),
        ),
    ],
)
def test_containers(text, found):
    assert container(text, D="d") == found


@pytest.mark.parametrize("text", ["docker ps", "vllm serve docker", "docker", "docker compose up"])
def test_others(text):
    assert container(text) is None
