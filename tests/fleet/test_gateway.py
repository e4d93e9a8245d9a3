import pytest
from statuses import fleet

from sparkfleet.fleet.gateway import gateway_change
from sparkfleet.gateway.listening import GatewayListening, GatewayTls
from sparkfleet.gateway.report import EntryReport
from sparkfleet.specs.inventory import Inventory

KEY = "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDgEbNVvZYGQFQFqzs"
NOW = GatewayListening(host="127.0.0.1", port=8123, max_body_bytes=32_000_000)


def status(listening=NOW):
    return fleet(listening=listening)


def inventory(**gateway):
    more = {"gateway": gateway} if gateway else {}
    return Inventory.model_validate(
        {"fleet": "home", "head": "a", "nodes": {"a": {"address": "local"}}, **more}
    )


@pytest.mark.parametrize(
    ("gateway", "words"),
    [
        ({"host": "0.0.0.0", "port": 0}, "gateway: host 127.0.0.1 → 0.0.0.0; at once, and open streams go on"),
        ({"port": 8123}, ""),
        ({"port": 0}, ""),
        ({"port": 9000}, "gateway: port 8123 → 9000; at once, and open streams go on"),
        ({"port": 0, "max_body_mb": 64}, "gateway: max_body_mb 32 → 64; at once, and open streams go on"),
        (
            {"port": 0, "origins": ("https://chat.example.org",)},
            "gateway: origins none → https://chat.example.org; at once, and open streams go on",
        ),
        ({"port": 0, "tls": "generated"}, "gateway: tls none → generated; at once, and open streams go on"),
        (
            {"port": 0, "tls": {"cert": "/a.pem", "key": "/k.pem"}},
            "gateway: tls none → /a.pem with /k.pem; at once, and open streams go on",
        ),
        ({}, ""),
    ],
)  # fmt: skip
def test_only_what_the_inventory_names_changes(gateway, words):
    """An inventory without `gateway:` must not close what another one has opened."""
    assert gateway_change(inventory(**gateway), status()) == words


def test_an_older_controller_or_none_has_no_change():
    wanted = inventory(host="0.0.0.0")
    assert gateway_change(wanted, None) == gateway_change(wanted, status(None)) == ""


def test_a_certificate_for_further_names_is_no_change():
    """The head's names are known on the head only."""
    now = NOW.model_copy(update={"tls": GatewayTls(names=("10.0.0.7",))})
    assert gateway_change(inventory(tls="generated", port=0), status(now)) == ""
    assert gateway_change(inventory(port=0), status(now)) == (
        "gateway: tls generated → none; at once, and open streams go on"
    )


def test_further_addresses_of_the_endpoint_are_a_change():
    nodes = {"a": {"address": "local"}, "b": {"address": "10.0.0.2", "user": "u", "host_key": KEY}}
    text = {"fleet": "home", "head": "a", "nodes": nodes, "gateway": {"host": "0.0.0.0", "port": 8123}}
    now = status(NOW.model_copy(update={"host": "0.0.0.0"}))
    everywhere = Inventory.model_validate({**text, "gateway": {**text["gateway"], "nodes": "all"}})
    assert gateway_change(everywhere, now) == "gateway: nodes none → b; at once, and open streams go on"
    with_b = now.model_copy(update={"entries": (EntryReport(node="b"),)})
    assert gateway_change(everywhere, with_b) == ""
    assert gateway_change(Inventory.model_validate(text), with_b) == (
        "gateway: nodes b → none; at once, and open streams go on"
    )
