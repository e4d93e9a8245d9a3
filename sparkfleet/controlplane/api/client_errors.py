"""Errors of calls to the controller: those that it returns, and those of an answer that is missing or of another release."""

from __future__ import annotations

from http import HTTPStatus

from sparkfleet import __version__
from sparkfleet.controlplane.api.api_models import API_VERSION
from sparkfleet.errors import ControlError, UnreadableStateError, WrongFleetError


class Failing(ControlError):
    """Error that the controller itself returned."""


class Held(Failing, UnreadableStateError):
    """The controller answers, and changes nothing until its store can be used."""


def error_class(status: int) -> type[ControlError]:
    """Class of an error that the controller returned, by its status."""
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return Held
    if status == HTTPStatus.UNAUTHORIZED:
        return WrongFleetError
    return Failing if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ControlError


def not_working(trouble: str) -> str:
    """Line about a controller whose own work fails; "" if it works."""
    if not trouble:
        return ""
    return (
        f"The controller does not work: {trouble}."
        " Running groups go on serving; changes are stored, and take effect when it is back."
    )


def unlike(version: str) -> ControlError:
    """Error of a controller of another release than this command, or of another build of the same one."""
    differ = (
        f"The control plane runs another build of sparkfleet {version} than this command."
        if version == __version__
        else f"The control plane runs sparkfleet {version}, this command is {__version__}."
    )
    return ControlError(
        differ,
        means="The two may not be compatible.",
        do="`sparkfleet upgrade` with the newer one installs it on every node; engines go on.",
    )


def unlike_api(version: str, api: int) -> ControlError:
    """Error of a controller with another version of the API than this command's."""
    newer = api > API_VERSION
    return ControlError(
        f"The control plane runs sparkfleet {version or '?'} with version {api} of its API, this command is {__version__}"
        f" with version {API_VERSION}.",
        means="Nothing was changed: a request could mean something else to the controller.",
        do=f"Use a command of sparkfleet {version}, which is newer."
        if newer
        else f"`sparkfleet upgrade` installs this one on every node, and engines go on; or use a command of sparkfleet"
        f" {version}.",
    )


def answer_lost() -> ControlError:
    """Error of a call that makes a key's text and had no answer: repeating it would end the text that is kept."""
    return ControlError(
        "The controller's answer was lost, and with it the text of the key.",
        means="The key may have been made or rotated; a former text is accepted for as long as you requested.",
        do="`sparkfleet keys list` shows the key. `sparkfleet keys rotate NAME` gives it another text, and ends the former"
        " one if the lost rotation was made.",
    )


def unanswered(url: str) -> ControlError:
    """Error of a controller that did not answer in time."""
    return ControlError(
        f"The controller does not answer at {url}.",
        means="The fleet is down, or its controller is restarting.",
        do="Run `sparkfleet up` to start it again; the desired state is on the head's disk.",
    )
