from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from sparkfleet.staging.agent import rsync_serve
from sparkfleet.staging.agent.rsync_fetch import From, command, local_address
from sparkfleet.staging.agent.rsync_serve import Listen, ServeRequest, Serving, configuration
from sparkfleet.staging.agent_client import Line, validated
from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.manifest import File, Manifest

SECRET = "s" * 32
PATIENCE_S = 60
FILE = File(path="x/model.safetensors", size=5, digest="a" * 64)


def test_the_module_is_read_only_hidden_and_for_one_peer(tmp_path):
    said = configuration(Path("/models/hub"), ("10.0.0.2", "10.0.1.2"), tmp_path / "secrets")
    lines = said.splitlines()
    for line in (
        "read only = yes",
        "list = no",
        "auth users = sparkfleet",
        "strict modes = yes",
        "use chroot = no",
    ):
        assert line in lines
    assert "hosts allow = 10.0.0.2 10.0.1.2" in lines
    assert "path = /models/hub" in lines
    assert f"secrets file = {tmp_path / 'secrets'}" in lines


@pytest.mark.parametrize("path", ["/a\nread only = no", "/a%b", "/a\\", "/a\0b", "/a ", "/a#b"])
def test_a_path_that_would_change_the_configuration_is_refused(path, tmp_path):
    with pytest.raises(StagingError, match="cannot be served"):
        configuration(Path(path), ("10.0.0.2",), tmp_path / "secrets")


@pytest.mark.parametrize("secret", ["short", "a" * 31 + "\n", "a" * 31 + ":", ""])
def test_a_secret_is_long_and_plain(secret):
    with pytest.raises(ValidationError):
        ServeRequest(kind="hub", name="o/n", listen=(), secret=secret, limit_s=1.0)


@pytest.mark.parametrize(
    ("kind", "address", "url"),
    [
        ("hub", "10.0.0.1", "rsync://sparkfleet@10.0.0.1:4000/staged/blobs/" + "a" * 64),
        ("directory", "fd00::1", "rsync://sparkfleet@[fd00::1]:4000/staged/x/model.safetensors"),
    ],
)
def test_the_command_names_no_secret_and_leaves_by_the_rail(kind, address, url):
    manifest = Manifest(kind=kind, name="o/n", files=(FILE,))
    source = From(address=address, port=4000, bind="10.0.0.2")
    argv = command("/usr/bin/rsync", source, manifest, FILE, Path("/cache/part"))
    assert argv[-2:] == (url, "/cache/part")
    assert "--address=10.0.0.2" in argv
    assert "--append" in argv
    assert SECRET not in " ".join(argv)


@pytest.mark.parametrize(
    ("more", "local"),
    [
        ({"lan_address": "127.0.0.2"}, "127.0.0.2"),
        ({"lan_address": "192.0.2.1"}, ""),  # of a router that translates addresses
        ({"lan_address": "spark-1.local"}, ""),
        ({"lan_address": "::1"}, ""),
        ({"bind": "192.0.2.1"}, "192.0.2.1"),  # a rail that is down has no other address
        ({}, ""),
    ],
)
def test_on_the_lan_it_leaves_by_the_address_that_the_sender_accepts(more, local):
    """A receiver with two addresses on the LAN left by the other one, and was refused."""
    assert local_address(From(address="127.0.0.1", port=4000, **more)) == local


def test_every_address_of_a_name_is_accepted(monkeypatch, tmp_path):
    found = [(0, 0, 0, "", (address, 0)) for address in ("192.0.2.1", "fe80::1%eth0", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listen = (Listen(address="", peer="spark-1.local"),)
    request = ServeRequest(kind="hub", name="o/n", listen=listen, secret=SECRET, limit_s=1.0)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with rsync_serve._configured(tmp_path, request) as config:
        assert "hosts allow = 192.0.2.1 fe80::1" in config.read_text().splitlines()


def test_files_that_another_sweep_removes_are_skipped(tmp_path, monkeypatch):
    gone = tmp_path / f"sparkfleet-serve-{os.getuid()}-{1 << 30}-x"
    monkeypatch.setattr(Path, "glob", lambda directory, pattern: iter([gone]))
    rsync_serve._sweep()
    assert not gone.exists()


class Sender:
    """`serve` on 127.0.1.1 for clients from 127.0.1.2."""

    def __init__(self, process, serving):
        self.process = process
        self.port = serving.ends[0][1]
        self.pid = serving.pid

    async def pull(self, scratch, *, bind="127.0.1.2", secret=SECRET, path="blobs/abc", into="out"):
        child = await asyncio.create_subprocess_exec(
            "rsync",
            "--contimeout=5",
            f"--address={bind}",
            f"rsync://sparkfleet@127.0.1.1:{self.port}/{path}",
            str(scratch / into),
            env={**os.environ, "RSYNC_PASSWORD": secret},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE_S):
            return await child.wait() == 0


def _serving(line):
    if line.event == "error":
        raise StagingError(line.what, means=line.means, do=line.do)
    return validated("n1", line.value, Serving)


@pytest.fixture
async def sender(tmp_path):
    blobs = tmp_path / "hub" / "models--o--n" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc").write_bytes(b"weights")
    (tmp_path / "hub" / "outside").write_text("not yours")
    started = []

    async def start(limit_s=600.0):
        scratch = tmp_path / "tmp"
        scratch.mkdir(exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sparkfleet.staging.agent.rsync_serve",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        started.append(process)
        listen = (Listen(address="127.0.1.1", peer="127.0.1.2"),)
        cache = str(tmp_path / "hub")
        request = ServeRequest(
            kind="hub", name="o/n", cache=cache, listen=listen, secret=SECRET, limit_s=limit_s
        )
        process.stdin.write(request.model_dump_json().encode())
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            line = Line.model_validate_json(await process.stdout.readline())
        return Sender(process, _serving(line))

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        process._transport.close()
        await process.wait()


async def ended(process):
    async with asyncio.timeout(PATIENCE_S):
        return await process.wait()


@pytest.mark.integration
async def test_only_the_peer_with_the_secret_gets_in_and_only_to_read(sender, tmp_path):
    serving = await sender()
    assert await serving.pull(tmp_path, path="staged/blobs/abc")
    assert (tmp_path / "out").read_bytes() == b"weights"
    assert not await serving.pull(tmp_path, path="staged/blobs/abc", secret="wrong" * 8, into="no1")
    assert not await serving.pull(tmp_path, path="staged/blobs/abc", bind="127.0.1.3", into="no2")
    assert not await serving.pull(tmp_path, path="staged/../outside", into="no3")
    assert not await serving.pull(tmp_path, path="other/blobs/abc", into="no4")
    assert not list(tmp_path.glob("no*"))
    upload = await asyncio.create_subprocess_exec(
        "rsync", "--address=127.0.1.2", str(tmp_path / "out"),
        f"rsync://sparkfleet@127.0.1.1:{serving.port}/staged/blobs/new",
        env={**os.environ, "RSYNC_PASSWORD": SECRET}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert await ended(upload) != 0
    assert not (tmp_path / "hub" / "models--o--n" / "blobs" / "new").exists()


@pytest.mark.integration
async def test_it_listens_on_the_rail_alone(sender):
    serving = await sender()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", serving.port)


@pytest.mark.integration
async def test_it_ends_on_request_and_leaves_nothing(sender, tmp_path):
    serving = await sender()
    config = next((tmp_path / "tmp").glob("sparkfleet-serve-*"))
    assert config.stat().st_mode & 0o077 == 0
    assert (config / "secrets").stat().st_mode & 0o077 == 0
    serving.process.terminate()
    assert await ended(serving.process) == 0
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.integration
async def test_a_server_ends_with_its_reader(sender, tmp_path):
    serving = await sender()
    serving.process._transport.get_pipe_transport(1).close()
    await ended(serving.process)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.integration
async def test_it_ends_when_its_time_is_up(sender):
    serving = await sender(limit_s=0.2)
    await ended(serving.process)


@pytest.mark.integration
async def test_remains_of_a_killed_server_are_removed_by_the_next(sender, tmp_path):
    first = await sender()
    first.process.kill()
    await ended(first.process)
    (left,) = (tmp_path / "tmp").iterdir()
    await sender()
    assert not left.exists()
