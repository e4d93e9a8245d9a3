import stat
import subprocess
from pathlib import Path

import pytest
from address_values import cable, inventory, spark
from control_values import deployment, plan
from fake_runtime import FakeRuntime
from launches import launches_for

from sparkfleet.controlplane.state.desired import Desired
from sparkfleet.errors import NodeError
from sparkfleet.group.mpi_keys import write_keys
from sparkfleet.group.ranks import local_rank as rank_module
from sparkfleet.group.ranks.local_rank import LocalRank
from sparkfleet.group.ranks.rank_node import spec_here
from sparkfleet.group.ranks.rank_spec import Ports
from sparkfleet.planner.types.plan import GroupShape
from sparkfleet.runtime.base import ContainerSpec
from sparkfleet.runtime.files.fleet_paths import FleetPaths

SECRET = "s" * 64
FLEET = inventory({"a": spark(1), "b": spark(2)}, (cable("a", "b", 100),))
CONTAINER = ContainerSpec(tool="podman", image="localhost/trtllm:1")


def ordered(engine="trtllm", nodes=("a", "b"), generation=3):
    """A group of that engine."""
    base = plan()
    rung = base.groups[0].choice
    told = {
        "engine": engine,
        "runtime": "container",
        "image": CONTAINER.image,
        "shape": GroupShape(nodes=nodes, tp=len(nodes)),
    }
    rung = rung.model_copy(update={"candidate": rung.candidate.model_copy(update=told)})
    groups = (base.groups[0].model_copy(update={"ladder": (rung,)}),)
    wanted = Desired(
        spec=deployment(),
        plan=base.model_copy(update={"groups": groups}),
        generation=generation,
        who="me",
        since=0.0,
    )
    return launches_for(FLEET, wanted)[0]


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Start a rank, of which only its supervisor is fake: the runtime, and the fleet's directories."""
    monkeypatch.setattr(rank_module, "free_port", lambda host: 4000)

    async def container_of(launch):
        return CONTAINER

    monkeypatch.setattr(rank_module, "container_of", container_of)

    async def started(launch, rank):
        runtime, paths = FakeRuntime(), FleetPaths(tmp_path / str(rank))
        await LocalRank(paths, runtime, launch, rank, SECRET).start(5000)
        return runtime.started[0], paths

    return started


def public(directory):
    return (directory / "id_ed25519.pub").read_text()


def test_it_is_a_key_pair_for_this_user_alone(tmp_path):
    write_keys(tmp_path / "keys", SECRET, ordered())
    told = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "keys/id_ed25519"], capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[:2] == public(tmp_path / "keys").split() != []
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "keys").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_all_nodes_of_a_group_have_the_same_and_no_other_group_has_it(tmp_path):
    for place, launch, secret in (
        ("a", ordered(), SECRET),
        ("b", ordered(), SECRET),
        ("next generation", ordered(generation=4), SECRET),
        ("other fleet", ordered(), "t" * 64),
    ):
        write_keys(tmp_path / place, secret, launch)
    assert public(tmp_path / "a") == public(tmp_path / "b")
    assert len({public(place) for place in tmp_path.iterdir()}) == 3


def test_where_it_cannot_be_written_the_node_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="cannot be written"):
        write_keys(tmp_path / "file/keys", SECRET, ordered())


@pytest.mark.parametrize("rank", [0, 1])
async def test_ranks_that_mpi_starts_find_it_where_they_are_told(started, rank):
    spec, paths = await started(ordered(), rank)
    (volume,) = (word for word in spec.argv if word.endswith(":/run/sparkfleet-keys:ro"))
    source = volume.partition(":")[0]
    assert source.startswith(str(paths.ranks))
    private = Path(source, "id_ed25519").read_text()
    assert private.splitlines()[1] not in spec.model_dump_json()
    assert public(Path(source)).startswith("ssh-ed25519 ")


@pytest.mark.parametrize(("engine", "nodes"), [("trtllm", ("a",)), ("vllm", ("a", "b"))])
async def test_no_other_rank_has_one(started, engine, nodes):
    spec, paths = await started(ordered(engine, nodes), 0)
    assert "keys" not in " ".join(spec.argv)
    assert not list(paths.root.rglob("id_ed25519*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_port_of_its_sshd_is_no_part_of_what_a_rank_is(tmp_path, rank):
    """A group's actor that was replaced adopts ranks that were started with another one."""
    digests = {
        spec_here(
            FleetPaths(tmp_path),
            ordered(),
            rank,
            Ports(http=4000, rendezvous=port),
            SECRET,
            container=CONTAINER,
        ).digest
        for port in (5000, 5001)
    }
    assert len(digests) == 1
