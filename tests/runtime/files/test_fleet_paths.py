import os
import re
import shlex
import stat

import pytest

from sparkfleet.errors import ControlError
from sparkfleet.runtime.files import fleet_paths as module
from sparkfleet.runtime.files.fleet_paths import FleetPaths


@pytest.fixture
def paths(tmp_path):
    return FleetPaths(tmp_path / "home")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_and_secrets_are_for_their_owner_only(paths):
    paths.create()
    assert {mode(d) for d in (paths.root, paths.gcs, paths.logs, paths.run)} == {0o700}
    secrets = (paths.ray_token, paths.api_token, paths.engine_secret)
    assert {mode(s) for s in secrets} == {0o600}
    assert len({s.read_text() for s in secrets}) == 3


def test_who_creates_them_at_the_same_time_finds_them_whole(paths, monkeypatch):
    seen, made = [], module.secrets.token_hex

    def meanwhile(size):
        monkeypatch.setattr(module.secrets, "token_hex", made)
        paths.create()
        seen.append(paths.ray_token.read_text())
        return made(size)

    monkeypatch.setattr(module.secrets, "token_hex", meanwhile)
    paths.create()
    assert seen == [paths.ray_token.read_text()]
    assert len(seen[0]) == 64
    assert not list(paths.root.glob(".*")), "nothing is left beside them"


def test_a_second_create_keeps_the_secrets(paths):
    paths.create()
    before = paths.engine_secret.read_text()
    paths.create()
    assert paths.engine_secret.read_text() == before


def test_a_fleet_with_a_store_gets_no_other_secret(paths):
    """Another one could not open the values that are sealed in the store, and engines that run have the old one."""
    paths.create()
    paths.database.touch()
    paths.engine_secret.unlink()
    with pytest.raises(ControlError, match="No such file") as caught:
        paths.create()
    assert "Put the file back" in caught.value.do
    assert not paths.engine_secret.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe" * 32, b"0" * 63, b"g" * 64])
def test_what_is_no_secret_is_not_used_as_one(paths, content):
    paths.create()
    paths.engine_secret.write_bytes(content)
    with pytest.raises(ControlError, match=re.escape(f"{paths.engine_secret} cannot be used")):
        paths.read_engine_secret()


def test_two_fleets_of_one_name_in_two_places_do_not_meet(tmp_path):
    one, other = FleetPaths(tmp_path / "a" / "home"), FleetPaths(tmp_path / "b" / "home")
    assert one.label != other.label
    assert one.run != other.run


def test_the_run_directory_leaves_room_for_rays_sockets(paths):
    # Ray: <temp>/session_2026-11-20_10-57-22_215616_8211/sockets/plasma_store, within 107 bytes
    assert len(str(paths.run / "ray")) + 70 <= 107


def test_a_run_directory_that_others_may_write_to_is_refused(paths):
    paths.create()
    os.chmod(paths.run, 0o777)
    try:
        with pytest.raises(ControlError, match="only you"):
            paths.create()
    finally:
        os.chmod(paths.run, 0o700)


def test_the_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARKFLEET_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert FleetPaths.default("home").root == tmp_path / "sparkfleet" / "home"
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path / "else"))
    assert FleetPaths.default("home").root == tmp_path / "else" / "home"


def test_the_secrets_of_the_head_are_on_the_disk_before_they_have_their_names(paths, monkeypatch):
    """A node without power soon after it had joined had an empty secret, and could start no engine."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(paths.engine_secret.exists()))
    paths.take(ray_token="", engine_secret="a" * 64)
    assert paths.read_engine_secret() == "a" * 64
    assert synced[-2:] == [False, True], "its bytes, then its name"


def test_the_api_token_is_read_without_its_newline_and_its_error_has_its_own_remedy(paths):
    paths.create()
    paths.api_token.write_text("a1" * 32 + "\n")
    assert paths.read_api_token() == "a1" * 32
    paths.api_token.write_text("garbage")
    with pytest.raises(ControlError, match=re.escape(f"{paths.api_token} cannot be used")) as caught:
        paths.read_api_token()
    assert f"openssl rand -hex 32 > {paths.api_token}" in caught.value.do


def test_the_remedies_of_secrets_take_a_home_with_a_space(tmp_path):
    paths = FleetPaths(tmp_path / "of two" / "home")
    for read in (paths.read_api_token, paths.read_engine_secret):
        with pytest.raises(ControlError) as caught:
            read()
        command = re.search("`(openssl [^`]*)`", caught.value.do)[1]
        assert shlex.split(command)[-1].startswith(str(paths.root))
