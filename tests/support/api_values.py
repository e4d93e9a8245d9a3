"""Clients of the API of a simulated controller, and requests."""

from control_values import deployment, plan

from sparkfleet.controlplane.api.api_models import ApplyRequest
from sparkfleet.controlplane.api.client import FleetClient
from sparkfleet.controlplane.state.head_address import HeadAddress
from sparkfleet.runtime.sealed_env import EnvSealer

TOKEN = "t" * 64

SEALER = EnvSealer(b"s" * 43)


def client(world, token=TOKEN, patience_s=0.0):
    address = HeadAddress(ray="127.0.0.2:1", api=world.url, gateway_host="127.0.0.1", gateway_port=8000)
    return FleetClient(address, token, patience_s)


def request(**fields):
    return ApplyRequest(spec=deployment(), plan=plan(**fields), who="me")
