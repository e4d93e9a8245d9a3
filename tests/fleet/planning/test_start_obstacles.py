"""Nodes on which a planned start would fail."""

import os
import shutil

import pytest
from control_values import plan
from fake_channel import FakeChannel

from sparkfleet.errors import FactError
from sparkfleet.fleet.planning.start_obstacles import taken_ports, too_large_kv, too_large_tables
from sparkfleet.hostfacts.disk import ReadContainerSpace, ReadHomeSpace
from sparkfleet.knowledge.models.known_models import known_checkpoint
from sparkfleet.remote.local import LocalChannel

LINE = 'LISTEN 0 4096 {} 0.0.0.0:* users:(("{}",pid=12,fd=3))\n'


def listening(*sockets):
    text = "".join(LINE.format(*one) for one in sockets)
    return {"this": FakeChannel("this", {("ss",): text})}


def custom(name="tts", port=3000):
    return plan(name, engine="custom", port=port)


@pytest.mark.parametrize("address", ["127.0.0.1:3000", "*:3000", "[::]:3000"])
async def test_a_port_of_another_program_is_named_before_the_start_that_fails(address):
    (line,) = await taken_ports(listening((address, "grafana"), ("*:22", "sshd")), [custom()], [])
    assert line == (
        "warning: tts: grafana listens on port 3000 of this, so its start there fails."
        " Give it another `port` (also in its `command`)."
    )


async def test_the_workload_that_runs_there_and_other_addresses_are_no_obstacle():
    nodes = listening(("192.168.100.10:3000", "raylet"), ("127.0.0.1:3001", "serve"))
    assert await taken_ports(nodes, [custom(), custom("stt", 3001)], [custom("stt", 3001)]) == ()


async def test_a_node_that_cannot_list_its_sockets_hides_no_plan():
    assert await taken_ports({"this": FakeChannel("this", {})}, [custom()], []) == ()


async def test_without_a_declared_port_no_node_is_asked():
    assert await taken_ports({}, [plan("tiny")], []) == ()


TABLES = {"builtin:tiny": known_checkpoint("RadixArk/Qwen3.8-Flash-Next-NVFP4")}
"""The model of `plan`, with 51 GB of them."""


def with_tables(image="lmsysorg/sglang:v0.5.21"):
    return plan("flash", engine="sglang", image=image)


def room(gigabytes):
    return {"this": FakeChannel("this", {("sh",): f"{gigabytes * 10**6} 1000\n"})}


async def test_a_disk_without_room_for_the_tables_of_a_start_is_named():
    """The plan named their size, and nothing compared it with the disk."""
    (line,) = await too_large_tables(room(40), [with_tables()], [], TABLES)
    assert line.startswith("warning: flash: each start writes 51 GB of n-gram tables into its container")
    assert "this's containers has 40 GB free" in line
    assert await too_large_tables(room(60), [with_tables()], [], TABLES) == ()


async def test_the_tables_of_the_engine_that_it_replaces_are_no_obstacle():
    assert await too_large_tables(room(40), [with_tables()], [with_tables()], TABLES) == ()


async def test_an_image_that_writes_none_and_an_unknown_disk_are_no_obstacle():
    assert await too_large_tables({}, [with_tables("vllm/vllm-openai:v1")], [], TABLES) == ()
    assert await too_large_tables({"this": FakeChannel("this", {})}, [with_tables()], [], TABLES) == ()


@pytest.mark.parametrize(
    ("docker", "podman"),
    [("exit 1", "echo {}"), ("echo '{} [[Backing Filesystem extfs] [Supports d_type true]]'", "exit 1")],
    ids=["podman", "docker"],
)
async def test_the_space_of_containers_is_read_from_a_tool_that_answers(
    tmp_path, monkeypatch, docker, podman
):
    for name, body in (("docker", docker.format(tmp_path)), ("podman", podman.format(tmp_path))):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = await LocalChannel("this").run(ReadContainerSpace.argv)
    read = ReadContainerSpace.answer(done.exit_code, done.stdout, done.stderr)
    assert read == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    with pytest.raises(FactError):
        ReadContainerSpace.parse("x 1")


def with_kv(name="chat", size=100 * 10**9):
    return plan(name, kv_disk_bytes=size)


async def test_a_disk_with_less_room_than_kv_may_take_is_named():
    (line,) = await too_large_kv(room(60), [with_kv()], [])
    assert line.startswith(
        "warning: chat: `kv_disk` allows 100 GB, and the disk of this's home has 60 GB free: less is kept"
    )
    assert await too_large_kv(room(160), [with_kv()], []) == ()


async def test_a_deployment_whose_kv_is_there_already_and_others_are_no_obstacle():
    assert await too_large_kv(room(60), [with_kv()], [with_kv()]) == ()
    assert await too_large_kv({}, [plan("tiny")], []) == ()
    assert await too_large_kv({"this": FakeChannel("this", {})}, [with_kv()], []) == ()


async def test_the_space_of_the_home_is_read_here():
    done = await LocalChannel("this").run(ReadHomeSpace.argv)
    assert ReadHomeSpace.parse(done.stdout) == pytest.approx(
        shutil.disk_usage(os.path.expanduser("~")).free, rel=0.05
    )
