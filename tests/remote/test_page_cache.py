from fake_channel import FakeChannel

from sparkfleet.remote.channel import Completed
from sparkfleet.remote.page_cache import COMMAND, DROP_BY_HAND, drop, how_to_permit, may_drop, sudoers


def node(exit_code):
    def answer(call):
        return Completed(argv=call.argv, exit_code=exit_code, stdout="", stderr="")

    return FakeChannel("spark1", {("sudo",): answer})


async def test_it_is_dropped_by_one_command_without_a_password():
    channel = node(0)
    assert await drop(channel)
    assert channel.calls[0].argv == ("sudo", "--non-interactive", *COMMAND)


async def test_asking_changes_nothing():
    channel = node(0)
    assert await may_drop(channel)
    assert "--list" in channel.calls[0].argv


async def test_without_permission_or_sudo_it_is_not_done():
    assert not await drop(node(1))
    assert not await may_drop(FakeChannel("spark1", {}))


def test_the_permission_is_for_that_command_alone():
    assert sudoers("nvidia") == "nvidia ALL=(root) NOPASSWD: /usr/sbin/sysctl -w vm.drop_caches=3"
    assert "chmod 0440" in how_to_permit("nvidia")


def test_the_command_to_type_is_the_permitted_one():
    permitted = sudoers("nvidia").partition("NOPASSWD: ")[2]
    assert f"sync && sudo {permitted}" == DROP_BY_HAND
