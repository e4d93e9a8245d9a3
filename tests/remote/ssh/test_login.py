from __future__ import annotations

import os
import re
import subprocess

import pytest

from sparkfleet.remote.unreachable import AuthenticationFailed


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An SSH agent that holds nothing."""
    address = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.PIPE)
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
    yield lambda key: subprocess.run(["ssh-add", "-q", key], check=True, stdin=subprocess.DEVNULL)
    process.terminate()
    process.communicate()


@pytest.fixture(autouse=True)
def no_agent(monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.mark.parametrize(
    "kind", [["ed25519"], ["ecdsa"], ["rsa", "-b", "2048"], ["rsa", "-b", "2048", "-m", "PEM"]]
)
async def test_key_files_of_every_kind_log_in(sshd, kind):
    key = sshd.keygen("key", "-t", *kind, "-N", "")
    (sshd.home / "authorized").write_bytes(sshd.public(key))
    with sshd.running():
        async with sshd.channel(identities=(key,)) as channel:
            assert (await channel.run(["true"])).exit_code == 0


async def test_keys_of_the_agent_are_used(sshd, agent):
    agent(sshd.identity)
    with sshd.running():
        async with sshd.channel(identities=(), only_identities=False) as channel:
            assert (await channel.run(["true"])).exit_code == 0


async def test_an_encrypted_key_is_used_through_the_agent(sshd, agent):
    agent(sshd.identity)
    sshd.keygen("id", "-p", "-N", "secret")
    with sshd.running():
        async with sshd.channel() as channel:
            assert (await channel.run(["true"])).exit_code == 0


async def test_identities_only_excludes_the_agents_other_keys(sshd, agent):
    agent(sshd.identity)
    other = sshd.keygen("other")
    with sshd.running():
        async with sshd.channel(identities=(other,)) as channel:
            with pytest.raises(AuthenticationFailed, match=re.escape(f"{other}: not accepted")):
                await channel.run(["true"])


@pytest.mark.parametrize("kind", [["ed25519"], ["rsa", "-b", "2048"], ["rsa", "-b", "2048", "-m", "PEM"]])
async def test_an_encrypted_key_without_an_agent_is_an_error_with_the_command(sshd, kind):
    key = sshd.keygen("locked key", "-t", *kind, "-N", "secret")
    with sshd.running():
        async with sshd.channel(identities=(key,)) as channel:
            with pytest.raises(
                AuthenticationFailed, match=rf"encrypted and not in the SSH agent: `ssh-add '{key}'`"
            ):
                await channel.run(["true"])


async def test_a_full_agent_does_not_exhaust_the_servers_patience(sshd, agent):
    for index in range(9):
        agent(sshd.keygen(f"other{index}"))
    with sshd.running():
        async with sshd.channel(only_identities=False) as channel:
            assert (await channel.run(["true"])).exit_code == 0


async def test_a_missing_key_is_reported(sshd):
    with sshd.running():
        async with sshd.channel(identities=(sshd.home / "missing",)) as channel:
            with pytest.raises(AuthenticationFailed) as caught:
                await channel.run(["true"])
    missing = str(sshd.home / "missing")
    assert f"{missing} does not exist" in caught.value.what
    assert missing in caught.value.do
    assert "identity_file" in caught.value.do
    assert "ssh-copy-id" not in caught.value.do, "another key would not be tried"


async def test_no_key_at_all_is_reported_with_the_command_that_installs_one(sshd):
    with sshd.running():
        async with sshd.channel(identities=(sshd.home / "missing",), only_identities=False) as channel:
            with pytest.raises(
                AuthenticationFailed, match=r"no key was found[^$]*ssh-keygen[^$]*ssh-copy-id[^$]*init USER@"
            ) as caught:
                await channel.run(["true"])
    # An address without its port, or that of an alias in ~/.ssh/config, would be enrolled as another machine.
    assert "`sparkfleet init USER@HOST`, with the same HOST as before" in caught.value.do


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n"])
async def test_an_invalid_key_file_is_reported(sshd, content):
    broken = sshd.home / "broken"
    broken.write_bytes(content)
    with sshd.running():
        async with sshd.channel(identities=(broken,)) as channel:
            with pytest.raises(AuthenticationFailed, match=f"{broken} cannot be used"):
                await channel.run(["true"])


async def test_an_agent_that_is_gone_is_no_obstacle(sshd, monkeypatch):
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sshd.home / "nowhere"))
    with sshd.running():
        async with sshd.channel() as channel:
            assert (await channel.run(["true"])).exit_code == 0


@pytest.mark.parametrize("user", ["no-such-user", "$(reboot)", "root; id", "a\nb", "é" * 200])
async def test_an_unknown_user_is_denied(sshd, user):
    with sshd.running():
        async with sshd.channel(user=user) as channel:
            with pytest.raises(AuthenticationFailed, match=r"(?s)SSH login as .* was denied"):
                await channel.run(["true"])


@pytest.mark.skipif(
    os.geteuid() != 0, reason="a server that wants more than a key needs PAM or root's password"
)
async def test_a_server_that_requires_more_than_a_key_is_reported(sshd):
    options = "AuthenticationMethods publickey,password\nPasswordAuthentication yes\n"
    with sshd.running(options=options):
        async with sshd.channel() as channel:
            with pytest.raises(AuthenticationFailed, match="also requires password"):
                await channel.run(["true"])
