import resource

import pytest
from fake_channel import FakeChannel

from sparkfleet.errors import NodeError, SparkfleetError
from sparkfleet.fleet.nodes.surroundings import NodeRole, NodeSurroundings, OtherFleet
from sparkfleet.fleet.setup import enrolment, hosts, shown_keys
from sparkfleet.fleet.setup.hosts import Host, parse_host
from sparkfleet.remote.channel import Completed
from sparkfleet.remote.ssh.host_keys import HostKey
from sparkfleet.remote.unreachable import Refused
from sparkfleet.specs.load import load_inventory

KEY = "SHA256:" + "A" * 43
OTHER = "SHA256:" + "B" * 43


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("spark1", Host(None, "spark1", 22)),
        ("nvidia@10.0.0.1:2222", Host("nvidia", "10.0.0.1", 2222)),
        ("anna@corp.example@10.0.0.1:2222", Host("anna@corp.example", "10.0.0.1", 2222)),
        ("fe80::1%eth0", Host(None, "fe80::1%eth0", 22)),
        ("u@[fe80::1]:2222", Host("u", "fe80::1", 2222)),
    ],
)
def test_hosts(text, host):
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["", "a b", "a:0", "a:99999", "a@", "@", "a@@b", "a@b@c@d"])
def test_what_is_no_host(text):
    with pytest.raises(SparkfleetError, match="is not valid"):
        parse_host(text)


NETDEVS = (
    '[{{"ifname": "enP7s7", "flags": ["UP", "LOWER_UP"], "mtu": 1500, "address": "02:00:00:00:01:0{n}",'
    ' "addr_info": [{{"local": "10.0.0.{n}", "prefixlen": 24}}]}},'
    ' {{"ifname": "enp1s0f1np1", "flags": ["UP", "LOWER_UP"], "mtu": 9000, "address": "02:00:00:00:02:0{n}",'
    ' "addr_info": [{{"local": "192.168.100.1{n}", "prefixlen": 24}}]}}]'
)


@pytest.fixture
def machines(monkeypatch):
    """Sparks 10.0.0.1 and 10.0.0.2 on one cable; machines[address] are their answers, and keys their host keys."""
    answers, keys = {}, {}

    def batch(number):
        def answer(argv):
            if argv[:2] == ("uname", "-n"):
                return f"spark-{number}\n"
            if argv[0] == "lspci":
                return answers.get(
                    "lspci",
                    "000f:01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2e12]\n",
                )
            if argv == ("cat", "/proc/meminfo"):
                return answers.get(f"memory {number}")
            if argv[:3] == ("ip", "-j", "neigh"):
                other = 3 - number
                return (
                    f'[{{"dst": "192.168.100.1{other}", "dev": "enp1s0f1np1",'
                    f' "lladdr": "02:00:00:00:02:0{other}", "state": ["REACHABLE"]}}]'
                )
            return None

        return answer

    async def run_batch(channel, argvs, **_):
        found = [batch(int(channel.node[-1]))(tuple(argv)) for argv in argvs]
        return [
            NodeError(f"{argv[0]} was not found")
            if stdout is None
            else Completed(argv=tuple(argv), exit_code=0, stdout=stdout, stderr="")
            for argv, stdout in zip(argvs, found, strict=True)
        ]

    def open_channel(name, node):
        number = node.address[-1]
        known = {("ip", "-j", "-d", "addr"): NETDEVS.format(n=number)}
        if "surroundings" in answers:
            known["python3", "-I", "-c"] = answers["surroundings"]
        return FakeChannel(f"n{number}", known)

    async def fingerprint(address, port):
        return HostKey(type="ssh-ed25519", fingerprint=keys.get(address, KEY))

    for where in ("sparkfleet.fleet.setup.enrolment", "sparkfleet.fabric.probe"):
        monkeypatch.setattr(f"{where}.run_batch", run_batch)
    monkeypatch.setattr(enrolment, "open_channel", open_channel)
    monkeypatch.setattr("sparkfleet.remote.ssh.host_keys.fingerprint", fingerprint)
    return answers, keys


HOSTS = ("u@10.0.0.1", "u@10.0.0.2")
GIVEN = ("--host-key", KEY)


def test_init_writes_what_it_finds(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    code, out, _ = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    assert code == 0
    assert f"10.0.0.1  ssh-ed25519  {KEY}" in out
    assert "found by arp" in out
    inventory = load_inventory(file)
    assert list(inventory.nodes) == ["spark-1", "spark-2"]
    assert inventory.nodes["spark-1"].host_key == KEY
    assert inventory.links[0].rails[0][1].address == "192.168.100.12/24"


def test_the_memory_of_each_spark_is_shown(sparkfleet, machines, tmp_path):
    machines[0]["memory 1"] = "MemTotal:       127600748 kB\nMemAvailable: 112503684 kB\n"
    machines[0]["memory 2"] = "MemTotal:        62500000 kB\nMemAvailable:  47402936 kB\n"
    _, out, _ = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", tmp_path / "inventory.yaml")
    assert "spark-1: DGX Spark, 128 GB (its GPU is 10de:2e12)" in out
    assert "spark-2: DGX Spark, 64 GB (its GPU is 10de:2e12)" in out


def test_a_memory_that_is_not_read_is_not_shown(sparkfleet, machines, tmp_path):
    _, out, _ = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", tmp_path / "inventory.yaml")
    assert "spark-1: DGX Spark (its GPU is 10de:2e12)" in out


def test_a_fleet_that_runs_there_is_named_for_an_owner_without_its_inventory(sparkfleet, machines, tmp_path):
    """`up` with the new inventory would start another fleet beside it."""
    role = NodeRole(verb="join", node="spark-2", head="spark-2", ray="10.0.0.2:6379", live=True)
    lab = OtherFleet(fleet="lab", root="/home/u/lab", role=role)
    machines[0]["surroundings"] = NodeSurroundings(others=(lab,)).model_dump_json()
    file = tmp_path / "inventory.yaml"
    code, out, _ = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    assert code == 0
    assert "Fleet lab (head spark-2) also runs on spark-1, spark-2" in out
    assert "(`fleet: lab`, `head: spark-2`)" in out


def test_a_fleet_of_the_same_name_that_runs_there_has_its_head_named(sparkfleet, machines, tmp_path):
    """The likeliest case of a lost inventory, as `home` is the name of every fleet without another: `init` was silent."""
    role = NodeRole(verb="join", node="spark-1", head="spark-2", ray="10.0.0.2:6379", live=True)
    machines[0]["surroundings"] = NodeSurroundings(role=role).model_dump_json()
    code, out, _ = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", tmp_path / "inventory.yaml")
    assert code == 0
    assert "spark-1 belongs to fleet home of head spark-2, which is running. Set `head: spark-2`" in out


def test_a_schema_is_named_only_in_a_clone(sparkfleet, machines, tmp_path):
    """Elsewhere an editor reported that it cannot be loaded."""
    (clone := tmp_path / "clone" / "docs" / "schema").mkdir(parents=True)
    (clone / "inventory.schema.json").write_text("{}")
    for file, named in ((tmp_path / "inventory.yaml", False), (tmp_path / "clone" / "inventory.yaml", True)):
        assert sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)[0] == 0
        assert ("$schema=./docs/schema/inventory.schema.json" in file.read_text()) is named


def test_again_changes_nothing_and_needs_no_hosts(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    code, out, _ = sparkfleet("init", "-i", file)
    assert code == 0
    assert "(pinned)" in out
    assert "No change" in out


def test_nothing_is_pinned_or_overwritten_unasked(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    code, out, err = sparkfleet("init", *HOSTS, "-i", file)
    assert code == 1
    assert KEY in out
    assert "Nothing was changed: this needs a confirmation" in err
    assert not file.exists()
    file.write_text(f'fleet: f\nhead: a\nnodes:\n  a: {{address: 10.0.0.1, user: u, host_key: "{KEY}"}}\n')
    before = file.read_text()
    code, out, err = sparkfleet("init", "10.0.0.1", "-i", file)
    assert code == 1
    assert "-  a: {address" in out or "+# " in out
    assert file.read_text() == before


@pytest.fixture
def moved(sparkfleet, machines, monkeypatch, tmp_path):
    """An inventory of 10.0.0.1, with an engine of its own, and 10.0.0.2; the first has become 10.0.1.1."""
    file, (_, keys) = tmp_path / "inventory.yaml", machines
    keys |= {"10.0.0.2": OTHER}
    sparkfleet("init", *HOSTS, "--yes", *GIVEN, "--host-key", OTHER, "-i", file)
    file.write_text(file.read_text().replace("user: u", "user: u, engines: {vllm: {python: /opt/x}}", 1))
    assert list(load_inventory(file).nodes["spark-1"].engines) == ["vllm"]
    there = set()

    async def fingerprint(address, port):
        if address == "10.0.0.1" and address not in there:
            raise Refused(f"{address}: no answer.", means="", do="")
        return HostKey(type="ssh-ed25519", fingerprint=keys.get(address, KEY))

    monkeypatch.setattr("sparkfleet.remote.ssh.host_keys.fingerprint", fingerprint)
    return file, there


def test_a_node_at_another_address_is_recognised_by_its_host_key(sparkfleet, moved):
    """It was a second node beside itself, and the first one kept the address that nobody has."""
    file, _ = moved
    code, out, _ = sparkfleet("init", "10.0.1.1", "10.0.0.2", "--yes", "-i", file)
    assert code == 0
    assert "(pinned: spark-1, which is no longer at its address in the inventory)" in out
    inventory = load_inventory(file)
    assert {name: node.address for name, node in inventory.nodes.items()} == {
        "spark-1": "10.0.1.1",
        "spark-2": "10.0.0.2",
    }
    assert list(inventory.nodes["spark-1"].engines) == ["vllm"]
    assert inventory.links[0].nodes == ("spark-1", "spark-2")


def test_a_machine_with_the_host_key_of_another_is_another(sparkfleet, moved):
    file, there = moved
    there.add("10.0.0.1")
    assert sparkfleet("init", "u@10.0.1.1", "10.0.0.2", "--yes", "-i", file)[0] == 1, "its key is a new one"
    assert sparkfleet("init", "u@10.0.1.1", "--yes", *GIVEN, "-i", file)[0] == 0
    assert [node.address for node in load_inventory(file).nodes.values()] == [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
    ]


def test_a_changed_host_key_is_not_accepted_by_yes(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    machines[1]["10.0.0.2"] = OTHER
    code, out, err = sparkfleet("init", "--yes", "-i", file)
    assert code == 1
    assert f"(pinned is {KEY})" in out
    assert "10.0.0.2 differs from the pinned one" in err
    assert load_inventory(file).nodes["spark-2"].host_key == KEY


def test_yes_pins_no_key_that_was_not_given(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    machines[1]["10.0.0.2"] = OTHER
    code, out, err = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    assert code == 1
    assert f"{KEY}  (as given)" in out
    assert "add --host-key FINGERPRINT" in err
    assert not file.exists()
    assert sparkfleet("init", *HOSTS, "--yes", *GIVEN, "--host-key", OTHER, "-i", file)[0] == 0


def test_known_hosts_vouches(sparkfleet, machines, tmp_path, monkeypatch):
    monkeypatch.setattr(shown_keys, "_is_known", lambda where, key: key.fingerprint == KEY)
    code, out, _ = sparkfleet("init", *HOSTS, "--known-hosts", "-i", tmp_path / "inventory.yaml")
    assert code == 0
    assert "(in known_hosts)" in out


def test_a_machine_that_is_no_spark_is_refused_with_the_reason(sparkfleet, machines, tmp_path):
    machines[0]["lspci"] = (
        "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2684]\n".replace(
            "01:00", "0000:01:00", 1
        )
    )
    file = tmp_path / "inventory.yaml"
    code, _, err = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    assert code == 1
    assert "10.0.0.1 is no Spark: its GPU is 10de:2684" in err
    assert not file.exists()
    assert sparkfleet("init", *HOSTS, "--yes", *GIVEN, "--any", "-i", file)[0] == 0


@pytest.mark.parametrize(
    "words",
    [("u;reboot@10.0.0.1",), ("10.0.0.1", "--fleet", "Bad Name"), ("$(x)",), ("10.0.0.1", "-u", "a b")],
)
def test_hostile_words_are_a_clear_error(sparkfleet, machines, tmp_path, words):
    code, _, err = sparkfleet("init", *words, "--yes", *GIVEN, "-i", tmp_path / "inventory.yaml")
    assert code == 1
    assert "error:" in err


def test_an_address_where_nothing_is_is_named_once(sparkfleet, tmp_path):
    code, out, err = sparkfleet("init", "127.0.0.1:1", "-i", tmp_path / "inventory.yaml")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "error: 127.0.0.1 port 1 cannot be reached: Connection refused"


@pytest.mark.parametrize(
    ("key", "reason"),
    [("{}/none", "none: there is no such file."), ("{}", ": this is no file."), ("key", "absolute path")],
)
def test_a_key_that_is_not_there_is_named_before_any_machine_is_contacted(
    sparkfleet, tmp_path, monkeypatch, key, reason
):
    """It was named after the machine's own key had been compared and accepted."""
    monkeypatch.setattr("sparkfleet.cli.fleet.init.read_keys", None)  # which contacts them
    words = ("--identity-file", key.format(tmp_path), "-i", tmp_path / "inventory.yaml")
    code, out, err = sparkfleet("init", "10.0.0.1", *words)
    assert (code, out) == (1, "")
    assert reason in " ".join(err.split())


def test_a_key_of_the_agent_is_named_by_its_public_half(sparkfleet, machines, tmp_path):
    (tmp_path / "key.pub").touch()
    file = tmp_path / "inventory.yaml"
    words = (*HOSTS, "--yes", *GIVEN, "--identity-file", tmp_path / "key", "-i", file)
    assert sparkfleet("init", *words)[0] == 0
    assert str(tmp_path / "key") in file.read_text()


def test_a_file_that_cannot_be_written_is_told_before_anybody_is_asked(sparkfleet, tmp_path):
    code, out, err = sparkfleet("init", "local", "-i", tmp_path / "none" / "inventory.yaml")
    assert (code, out) == (1, "")
    assert f"{tmp_path / 'none'} is no directory" in err


def test_a_file_that_cannot_be_written_after_all(sparkfleet, machines, tmp_path, monkeypatch):
    file = tmp_path / "inventory.yaml"
    before = "# of the Küche\nfleet: home\nhead: one\nnodes: {one: {address: local}}\n"
    file.write_text(before, encoding="utf-8")
    resource.prlimit(0, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    try:
        code, _, err = sparkfleet("init", *HOSTS, "--yes", *GIVEN, "-i", file)
    finally:
        resource.prlimit(0, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert code == 1
    assert "inventory.yaml: cannot be written: File too large." in err
    assert "`-i FILE`" in err
    assert file.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [file]


def test_nobody_on_the_lan(sparkfleet, monkeypatch, tmp_path):
    async def nobody():
        return ()

    monkeypatch.setattr(hosts, "discover", nobody)
    code, _, err = sparkfleet("init", "-i", tmp_path / "inventory.yaml")
    assert code == 1
    assert "No Spark answered" in err


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid"])
def test_a_host_that_does_not_answer_is_not_looked_for_in_an_inventory(sparkfleet, tmp_path, host):
    """It named `address` and `port` of an inventory that does not exist yet."""
    code, _, err = sparkfleet("init", host, "-i", tmp_path / "inventory.yaml")
    assert code == 1
    assert "`sparkfleet init USER@HOST:PORT`" in err
    assert "inventory" not in err


def test_another_fleets_name_is_not_ignored(sparkfleet, machines, tmp_path):
    file = tmp_path / "inventory.yaml"
    assert sparkfleet("init", *HOSTS, "--yes", *GIVEN, "--fleet", "mine", "-i", file)[0] == 0
    before = file.read_text()
    assert load_inventory(file).fleet == "mine"
    assert sparkfleet("init", "--yes", "--fleet", "mine", "-i", file)[0] == 0
    code, _, err = sparkfleet("init", "--yes", "--fleet", "other", "-i", file)
    assert code == 1
    assert f"{file} is the inventory of fleet mine; --fleet other names a new one." in err
    assert file.read_text() == before


def test_every_machine_that_does_not_answer_is_named(sparkfleet, monkeypatch, tmp_path):
    """One of them was, in no order: an owner of eight had to type the command again for each."""

    async def fingerprint(address, port):
        if address == "10.0.0.1":
            return HostKey(type="ssh-ed25519", fingerprint=KEY)
        raise Refused(f"{address} port {port} cannot be reached: No route to host")

    monkeypatch.setattr("sparkfleet.remote.ssh.host_keys.fingerprint", fingerprint)
    code, out, err = sparkfleet("init", "10.0.0.1", "10.0.0.8", "10.0.0.9", "-i", tmp_path / "inventory.yaml")
    assert (code, out) == (1, "")
    assert err.count("cannot be reached") == 2
    assert err.index("10.0.0.8") < err.index("10.0.0.9") < err.index("Check the HOST")


def test_without_hosts_one_that_is_off_does_not_keep_init_from_the_others(sparkfleet, machines, moved):
    file, _ = moved
    code, _, err = sparkfleet("init", "--yes", "-i", file)
    assert code == 1
    assert "`sparkfleet init HOST…` keeps what the inventory has of it" in err
    code, _, err = sparkfleet("init", "10.0.0.1", "10.0.0.2", "--yes", "-i", file)
    assert code == 1
    assert "HOST…" not in err
    assert sparkfleet("init", "10.0.0.2", "--yes", "-i", file)[0] == 0
    assert list(load_inventory(file).nodes) == ["spark-1", "spark-2"]
