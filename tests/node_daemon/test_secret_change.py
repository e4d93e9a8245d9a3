"""Steps of changing the internal secrets, each on its node; the integration tests have the whole."""

import errno
import os
import socket

from sparkfleet.controlplane.api.api_models import SecretsRequest
from sparkfleet.controlplane.api.api_tokens import ApiTokens
from sparkfleet.controlplane.state.head_address import HeadAddress, write_address
from sparkfleet.gateway.access.keys import metrics_token
from sparkfleet.node_daemon import secret_change
from sparkfleet.runtime.files.fleet_paths import FleetPaths


def step(paths, name, **more):
    return secret_change.answer(SecretsRequest(fleet="home", state_dir=str(paths.root), step=name, **more))


def admits(paths, token):
    return ApiTokens.read(paths.api_token, paths.former_api_tokens).admits(f"Bearer {token}")


def test_during_a_change_both_api_tokens_are_good_and_afterwards_the_new_one(paths):
    old = paths.api_token.read_text()
    serving = ApiTokens.read(paths.api_token, paths.former_api_tokens)
    step(paths, "begin")
    new = paths.api_token.read_text()
    assert new != old
    assert serving.admits(f"Bearer {old}")
    assert serving.admits(f"Bearer {new}")
    step(paths, "finish")
    assert not serving.admits(f"Bearer {old}")
    assert serving.admits(f"Bearer {new}")


def test_secrets_are_private_files(paths):
    step(paths, "begin")
    for file in (paths.api_token, paths.former_api_tokens, paths.engine_tokens):
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_second_change_waits_for_the_first(paths):
    step(paths, "begin")
    before = paths.engine_tokens.read_text(), paths.api_token.read_text()
    assert "under way" in step(paths, "begin")["error"]["what"]
    assert before == (paths.engine_tokens.read_text(), paths.api_token.read_text())
    step(paths, "finish")
    assert step(paths, "begin")["under_way"]


def test_a_beginning_that_was_interrupted_is_repeated_and_every_token_is_good(paths, monkeypatch):
    """The repetition dropped the token that every running command had."""
    old, real = paths.api_token.read_text(), secret_change.write_atomically

    def full(path, content, **more):
        if path == paths.engine_tokens:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content, **more)

    with monkeypatch.context() as patched:
        patched.setattr(secret_change, "write_atomically", full)
        assert "Repeat the command" in step(paths, "begin")["error"]["do"]
    between = paths.api_token.read_text()
    assert step(paths, "begin")["under_way"]
    assert all(admits(paths, token) for token in (old, between, paths.api_token.read_text()))
    step(paths, "finish")
    assert not any(admits(paths, token) for token in (old, between))


def test_another_node_takes_the_heads_secrets(paths, tmp_path):
    made = step(paths, "begin")
    other = FleetPaths(tmp_path / "other")
    other.create()
    assert step(other, "take", engine_tokens=made["engine_tokens"])["current"] == made["current"]
    assert other.read_token_secrets() == paths.read_token_secrets()
    assert "error" in step(other, "take", engine_tokens="nothing")
    assert other.read_token_secrets() == paths.read_token_secrets()


def test_the_metrics_token_changes_at_the_end_and_in_the_same_file(paths):
    first = metrics_token(paths.read_engine_secret().encode())
    paths.metrics_token.write_text(first)
    inode = paths.metrics_token.stat().st_ino
    step(paths, "begin")
    assert paths.metrics_token.read_text() == first
    step(paths, "finish")
    assert (
        paths.metrics_token.read_text() == metrics_token(paths.read_token_secrets().current.encode()) != first
    )
    assert paths.metrics_token.stat().st_ino == inode  # a container has the file, not its name


def test_a_fleet_that_is_down_gets_all_tokens_anew(paths):
    files = (paths.ray_token, paths.api_token)
    before = [file.read_text() for file in files]
    sealing = paths.read_engine_secret()
    assert not step(paths, "renew")["under_way"]
    assert all(file.read_text() != old for file, old in zip(files, before, strict=True))
    assert paths.read_token_secrets().current != sealing == paths.read_engine_secret()


def test_nothing_is_renewed_under_a_ray_that_runs(paths):
    with socket.create_server(("127.0.0.1", 0)) as ray:
        port = ray.getsockname()[1]
        write_address(
            paths,
            HeadAddress(
                ray=f"127.0.0.1:{port}", api="http://127.0.0.1:1", gateway_host="127.0.0.1", gateway_port=1
            ),
        )
        before = paths.ray_token.read_text()
        assert "Ray runs" in step(paths, "renew")["error"]["what"]
        assert paths.ray_token.read_text() == before


def test_a_file_that_cannot_be_written_is_named(paths):
    paths.former_api_tokens.mkdir()
    (paths.former_api_tokens / "x").touch()
    before = paths.api_token.read_text()
    assert os.fspath(paths.former_api_tokens.parent) in step(paths, "begin")["error"]["what"]
    assert paths.api_token.read_text() == before
