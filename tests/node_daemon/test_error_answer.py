import errno

from sparkfleet.errors import ControlError
from sparkfleet.node_daemon.error_answer import error_answer


def test_an_error_of_ours_has_its_own_parts():
    error = ControlError("away", means="nothing is served", do="start it")
    found = error_answer(error, means="half done", do="repeat it")
    assert found == {"error": {"what": "away", "means": "nothing is served", "do": "start it"}}


def test_one_of_the_system_names_its_file():
    error = OSError(errno.ENOSPC, "No space left on device", "/state/x")
    assert error_answer(error, means="half done", do="repeat it") == {
        "error": {"what": "/state/x: No space left on device.", "means": "half done", "do": "repeat it"},
        "errno": errno.ENOSPC,
    }


def test_one_without_a_file_is_of_the_state():
    """`None: No space left on device.`"""
    found = error_answer(OSError(errno.ENOSPC, "No space left on device"))
    assert found["error"]["what"] == "a file of the fleet's state: No space left on device."
