"""The port of the endpoint, and the ports that deployments declare."""

import pytest
from control_values import plan

from sparkfleet.controlplane.state.taken_ports import refuse_endpoint_ports
from sparkfleet.errors import ControlError


def test_an_endpoint_at_the_port_of_a_deployment_is_refused_with_both():
    custom = plan("speech", engine="custom", port=5005)
    with pytest.raises(
        ControlError, match="speech has port 5005 of this, at which the endpoint is to listen"
    ) as caught:
        refuse_endpoint_ports([plan("tiny"), custom], [("this", 5005)])
    assert "sparkfleet delete speech" in caught.value.do
    refuse_endpoint_ports([plan("tiny"), custom], [("this", 8000), ("other", 5005)])
