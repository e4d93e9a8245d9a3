"""Translates the errors of huggingface_hub, and answers that do not follow the Hub's API, for one repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx2
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers

from sparkfleet.checkpoints.io.safe_io import SHOWN_CHARACTERS, shown
from sparkfleet.errors import SparkfleetError
from sparkfleet.staging.errors import HubUnreachable, ModelAbsent, ModelGated, ModelNotShown, StagingError
from sparkfleet.staging.hub_http import (
    is_public_hub,
    keeps_secrets,
    odd_answer,
)

_NOT_THE_HUB = (TypeError, KeyError, AttributeError, ValueError, RuntimeError, AssertionError)
"""Exceptions of the library's classes for answers that do not follow the Hub's API."""
_ERRNO = re.compile(r"\[Errno -?\d+\] ")


def _without_password(endpoint: str) -> str:
    """An address for messages: without a user and password."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class HubErrors:
    """Errors of one repository at one Hub, with their meaning and the command to type.

    Args:
        name: Hub id of the model.
        endpoint: address of the Hub.
        token: access token, if one is given; None: the library's rules.
    """

    def __init__(self, name: str, endpoint: str, token: str | None) -> None:
        self._name = name
        self._endpoint = endpoint
        self._token = token
        self.address = _without_password(endpoint)
        """The Hub's address, for messages."""

    @contextmanager
    def worded(self, *, reads_api: bool = True) -> Iterator[None]:
        """Translates the library's errors. Raises StagingError, HubUnreachable, or an OSError of this machine's disk.

        Without `reads_api` no answer is parsed: then errors of Python come from the library's shared client, which it closes
        for all threads after a connection failed. They are temporary.
        """
        try:
            yield
        except SparkfleetError:
            raise
        except OfflineModeIsEnabled as error:
            raise StagingError(
                f"{self._name} is incomplete here, and HF_HUB_OFFLINE is set, so nothing is downloaded.",
                do="Unset HF_HUB_OFFLINE on this node, or copy from another node: `sparkfleet models push`.",
            ) from error
        except HfHubHTTPError as error:
            raise self._refused(error) from error
        except httpx2.TooManyRedirects as error:
            raise self.odd("redirects without an end") from error
        except httpx2.HTTPError as error:
            raise self.unreachable(_short(error)) from error
        except OSError as error:
            if error.errno is not None:  # the disk
                raise
            raise self.unreachable("an answer ended early") from error
        except _NOT_THE_HUB as error:
            if not reads_api:
                raise self.unreachable(_short(error)) from error
            raise self.odd("sent an answer that does not follow the Hub's API") from error

    def _refused(self, error: HfHubHTTPError) -> StagingError:
        status, page = error.response.status_code, f"{self.address}/{self._name}"
        if isinstance(error, RevisionNotFoundError):
            found = StagingError(
                f"{self._name} has no such revision.", do=f"Choose one from the list: {page}/commits"
            )
        elif isinstance(error, EntryNotFoundError):
            found = StagingError(
                f"{self._name}: the Hub lists a file that it does not have.",
                means="The repository was changed during the download.",
                do="Run it again.",
            )
        elif isinstance(error, GatedRepoError) or status == 403:
            found = self._gated(status)
        elif isinstance(error, RepositoryNotFoundError) or status in (401, 404):
            found = self._absent(status)
        elif status in (408, 416, 429) or status >= 500:
            found = self.unreachable(f"status {status}")
        else:
            found = StagingError(
                f"{self.address} refuses {self._name}: HTTP status {status}.", do=f"Open {page} in a browser."
            )
        return found

    def _gated(self, status: int) -> StagingError:
        return ModelGated(
            f"{self._name} is gated, and the Hub refuses it {self._with_token()} (HTTP status {status}).",
            means="Only accounts that accepted its licence may download it.",
            do=f"Accept the licence at {self.address}/{self._name}, then run `hf auth login` with that account, "
            "or set HF_TOKEN to one of its tokens.",
        )

    def _absent(self, status: int) -> StagingError:
        if status == 401 and self._sends_token():
            return StagingError(  # as for every model: it is no evidence against the name
                f"the Hub refuses the token of this machine for {self._name} (HTTP status 401).",
                means="The token may have expired, or the model is private and another account's.",
                do="`hf auth login` with a new token, or unset HF_TOKEN for a public model.",
            )
        refused = f"or it is private: refused {self._with_token()} (HTTP status {status})."
        if not is_public_hub(self._endpoint):
            return StagingError(  # a mirror may have a part of the public Hub's models, or be a proxy's error page
                f"{self.address} (HF_ENDPOINT) has no model {self._name}, {refused}",
                means="A mirror may lack a model that huggingface.co has.",
                do=f"Check the name at https://huggingface.co/{self._name}; unset HF_ENDPOINT if that can be reached. "
                "If it is private: `hf auth login`, or set HF_TOKEN.",
            )
        kind = ModelNotShown if status == 401 else ModelAbsent
        return kind(
            f"the Hub has no model {self._name}, {refused}",
            do=f"Check the name at {self.address}/{self._name}. If it is private: `hf auth login`, or set HF_TOKEN.",
        )

    def _with_token(self) -> str:
        if "authorization" in build_hf_headers(token=self._token) and not self._sends_token():
            return "without a token, which is sent over https only"
        return "with this token" if self._sends_token() else "without a token"

    def _sends_token(self) -> bool:
        return "authorization" in build_hf_headers(token=self._token) and keeps_secrets(self._endpoint)

    def unreachable(self, reason: str) -> HubUnreachable:
        """The error of a Hub that does not answer."""
        return HubUnreachable(
            f"{self.address} is not reachable: {reason}.",
            means="Downloaded bytes are kept; the next run continues from there.",
            do=f"Try `curl -I {self.address}` there; or set HF_ENDPOINT to a mirror that can be reached.",
        )

    def odd(self, what: str) -> StagingError:
        """The error of an answer that does not follow the Hub's API; `what`: a verb phrase about the Hub."""
        return odd_answer(f"{self.address}: {self._name}", what)


def _short(error: Exception) -> str:
    """The reason of a failure, shortened; without the number that Python puts before the operating system's words."""
    text = _ERRNO.sub("", str(error)) or type(error).__name__
    return text if text.isascii() and text.isprintable() and len(text) <= SHOWN_CHARACTERS else shown(text)
