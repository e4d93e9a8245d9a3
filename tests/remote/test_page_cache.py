import pytest
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
    assert all("--list" in call.argv for call in channel.calls)


USER = "Matching Defaults entries for nvidia on spark1:\n    env_reset, use_pty\n\nUser nvidia may run the following:\n"
LISTED = "/usr/sbin/sysctl -w vm.drop_caches\\=3"
ASKED = "    (ALL : ALL) ALL\n"


@pytest.mark.parametrize(
    ("listed", "may"),
    [
        # A user of group sudo, before and after the line of `fabric apply`: both were taken for a permission.
        ("    (ALL : ALL) ALL\n", False),
        ("    (ALL : ALL) ALL\n    (root) NOPASSWD: /usr/local/sbin/sparkfleet-rails\n", False),
        ("    (ALL : ALL) ALL\n    (root) NOPASSWD: /usr/sbin/sysctl\n        -w vm.drop_caches\\=3\n", True),
        ("    (root) NOPASSWD: /usr/sbin/sysctl -w vm.drop_caches\\=3\n    (ALL : ALL) ALL\n", False),
        ("    (ALL : ALL) ALL\n    (root) NOPASSWD: /usr/sbin/sysctl\n", True),
        ("    (ALL : ALL) ALL\n    (root) NOPASSWD: /usr/sbin/sysctl -w vm.*\n", True),
        # As sudo 1.9.13 lists them: each was reported as one that needs a password.
        (f"{ASKED}    (root) CWD=/tmp NOPASSWD: {LISTED}\n", True),
        (f"{ASKED}    (root) TIMEOUT=5400 NOTBEFORE=20200101000000Z NOPASSWD: {LISTED}\n", True),
        (f"{ASKED}    (root) ROLE=r TYPE=t SETENV: NOPASSWD: /bin/a, {LISTED}\n", True),
        (f"{ASKED}    (root) NOPASSWD: sha256:aGVsbG8=, sha224:0GomF+NsQ== {LISTED}\n", True),
        (f"{ASKED}    (root : adm) NOPASSWD: /usr/sbin/\n", True),
        (f"{ASKED}    (root) CWD=* sha256:aGVsbG8= {LISTED}\n", False),
        # Regular expressions, as sudo 1.9.13 lists them: such a permission was reported as missing.
        (f"{ASKED}    (root) NOPASSWD: /usr/sbin/sysctl ^-w vm\\.drop_caches=[123]$\n", True),
        (f"{ASKED}    (root) NOPASSWD: ^/usr/s?bin/sysctl$ ^-w vm\\.drop_caches=[123]$, /bin/a\n", True),
        (f"{ASKED}    (root) NOPASSWD: ^/usr/sbin/.*$\n", True),
        (f"{ASKED}    (root) NOPASSWD: /usr/sbin/sysctl ^-w vm\\.[[:alnum:]_]+=3$\n", True),
        (f"{ASKED}    (root) NOPASSWD: /usr/sbin/sysctl ^((-w)* (v*m*)*)*$\n", True),
        (f"{ASKED}    (root) NOPASSWD: /usr/sbin/sysctl ^-w net\\..*$\n", False),
        (f"{ASKED}    (root) NOPASSWD: ^/usr/bin/sysctl$\n", False),
        ("    (ALL) NOPASSWD: ALL\n    (root) PASSWD: /usr/sbin/sysctl ^-w .*$\n", False),
        ("    (ALL) SETENV: NOPASSWD: /bin/a, ALL\n", True),
        ("    (ALL) NOPASSWD: /bin/a, PASSWD: ALL\n", False),
    ],
)
async def test_a_command_that_needs_a_password_is_not_permitted(listed, may):
    channel = FakeChannel("spark1", {("sudo",): USER + listed})
    assert await may_drop(channel) is may


@pytest.mark.parametrize("asks", ["User root may run", "Defaults: !authenticate\nUser nvidia may run"])
async def test_a_user_who_is_never_asked_needs_no_entry(asks):
    channel = FakeChannel("spark1", {("sudo",): f"Matching\n{asks} the following:\n    (ALL : ALL) ALL\n"})
    assert await may_drop(channel)


async def test_without_permission_or_sudo_it_is_not_done():
    assert not await drop(node(1))
    assert not await may_drop(FakeChannel("spark1", {}))


def test_the_permission_is_for_that_command_alone():
    assert sudoers("nvidia") == "nvidia ALL=(root) NOPASSWD: /usr/sbin/sysctl -w vm.drop_caches=3"
    assert "chmod 0440" in how_to_permit("nvidia")


def test_the_command_to_type_is_the_permitted_one():
    permitted = sudoers("nvidia").partition("NOPASSWD: ")[2]
    assert f"sync && sudo {permitted}" == DROP_BY_HAND
