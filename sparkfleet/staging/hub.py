"""Lists and downloads the files of a Hub revision by huggingface_hub; interrupted downloads are continued.

The library handles tokens, mirrors, Xet and retries. Added here: bounds on a server's answers (hub_http.py), downloads that
continue the partial file of an earlier run (the library deletes it), and errors with the command to type.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, cast

from huggingface_hub import (
    HfApi,
    ModelInfo,
    RepoFile,
    constants,
    get_hf_file_metadata,
    get_session,
    hf_hub_url,
)
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import XetFileData, http_get, xet_get
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status
from pydantic import ValidationError

from sparkfleet import __version__
from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.specs.model_name import ModelName
from sparkfleet.staging.errors import HubUnreachable, ModelMiscased, StagingError
from sparkfleet.staging.file_selection import WEIGHTS_BY_PREFERENCE, may_be_wanted, wanted
from sparkfleet.staging.hub_errors import HubErrors
from sparkfleet.staging.hub_http import HttpTimeouts, checked_endpoint, use_bounded_client
from sparkfleet.staging.manifest import COMMIT, MAX_FILES, File, Manifest, by_path, unfit_name
from sparkfleet.staging.storage_layout import size_of
from sparkfleet.units import gb

TRIES = 3
"""Failures in a row without progress. The library itself tries each request of a download up to six times."""
_LOADED = (*WEIGHTS_BY_PREFERENCE, ".json", ".model", ".tiktoken", ".jinja")
"""Ends of the names of files that engines load: weights, configurations, tokenizers and templates."""


class Hub:
    """One repository at one Hub. `address` is its endpoint for messages.

    Args:
        name: Hub id of the model.
        endpoint: address of the Hub; "": HF_ENDPOINT, or the public one.
        token: access token; "": HF_TOKEN, HF_TOKEN_PATH or `hf auth login`, by the library's rules.
        timeouts: longest waits.
        note: called with messages for people.
    """

    def __init__(
        self,
        name: str,
        *,
        endpoint: str = "",
        token: str = "",
        timeouts: HttpTimeouts | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.endpoint = checked_endpoint(endpoint)
        self._token = token or None
        self._errors = HubErrors(name, self.endpoint, self._token)
        self.address = self._errors.address
        self._note = note
        self._timeouts = timeouts or HttpTimeouts()
        use_bounded_client(self.endpoint, self._timeouts)
        self._api = HfApi(self.endpoint, self._token, "sparkfleet", __version__)

    def manifest(self, revision: str, tag: str = "") -> Manifest:
        """The files that an engine needs of a revision, pinned to its commit; with a tag, those of this GGUF model.

        Raises:
            FactError: no GGUF model has the tag, or there are several and no tag.
            StagingError: the model or revision does not exist, it is gated, or the answer is invalid.
            HubUnreachable: the Hub does not answer.
        """
        commit = self.commit(revision)
        listed = {entry.path: entry for entry in self._listed(commit)}
        sizes = {path: entry.size for path, entry in listed.items()}
        paths = wanted(listed, tag, self.name, sizes)
        unfit = [path for path in paths if unfit_name(path)]
        self._leave_out(unfit)
        with self._errors.worded():
            chosen = [self._file(listed[path]) for path in paths if path not in unfit]
        if not chosen:
            raise StagingError(
                f"{self.name} at {revision} has no file that an engine can load.",
                do=f"Check the model's name and files: {self.address}/{self.name}/tree/{revision}",
            )
        name = ModelName(self.name, tag=tag).tagged
        return Manifest(kind="hub", name=name, commit=commit, files=by_path(chosen))

    def commit(self, revision: str) -> str:
        """The commit of a branch or tag.

        Raises:
            ModelMiscased: the Hub, which ignores case, has it with other upper and lower case letters.
            StagingError: the Hub refuses, or its answer does not follow its API.
        """
        for wait_s in (*range(1, TRIES), 0):
            try:
                with self._errors.worded():
                    found = self._api.model_info(self.name, revision=revision)
                break
            except HubUnreachable:
                if not wait_s:
                    raise
                time.sleep(wait_s)
        return self._commit_of(found)

    def sizes(self, revision: str) -> tuple[str, dict[str, int]]:
        """The commit of a revision and the bytes of its files by path, in one request.

        Raises:
            ModelMiscased: the Hub, which ignores case, has it with other upper and lower case letters.
            StagingError: the Hub refuses, or its answer does not follow its API.
        """
        with self._errors.worded():
            found = self._api.model_info(self.name, revision=revision, files_metadata=True)
            sizes = {one.rfilename: one.size for one in found.siblings or ()}
        return self._commit_of(found), {
            path: size for path, size in sizes.items() if isinstance(path, str) and type(size) is int
        }

    def _commit_of(self, found: ModelInfo) -> str:
        if found.id != self.name and found.id.lower() == self.name.lower():
            raise ModelMiscased.of(self.name, found.id, self.address)
        if not isinstance(found.sha, str) or not COMMIT.fullmatch(found.sha):
            raise self._errors.odd(f"names {shown(found.sha)} as its commit")
        return found.sha

    def start_of(self, path: str, commit: str, length: int, skipped: int = 0) -> bytes:
        """The first `length` bytes of a file behind the `skipped` ones, or all if it is shorter; reads no more than that.

        Raises:
            StagingError: the Hub refuses, or its answer does not follow its API.
            HubUnreachable: the Hub does not answer, or takes too long.
        """
        if length <= 0:
            return b""
        content, end_s = bytearray(), time.monotonic() + self._timeouts.answer_s
        headers = {
            **build_hf_headers(token=self._token),
            "range": f"bytes={skipped}-{skipped + length - 1}",
        }
        with (
            self._errors.worded(),
            get_session().stream("GET", self._url(path, commit), headers=headers) as answer,
        ):
            hf_raise_for_status(answer)
            before = skipped if answer.status_code == HTTPStatus.OK else 0  # the server may ignore ranges
            for chunk in answer.iter_bytes():
                content += chunk[before:]
                before = max(0, before - len(chunk))
                if len(content) >= length:
                    break
                if time.monotonic() > end_s:
                    raise self._errors.unreachable(f"{path} takes more than {self._timeouts.answer_s:.0f} s")
        return bytes(content[:length])

    def get(self, file: File, commit: str, part: Path) -> None:
        """Downloads the rest of a file into `part`.

        Raises:
            StagingError: the Hub refuses, or sends more bytes than it listed.
            HubUnreachable: the Hub does not answer, several times in a row.
        """
        failures, most = 0, size_of(part) or 0
        while (have := size_of(part)) != file.size:
            try:
                with self._errors.worded(reads_api=False):
                    self._more(file, commit, part, have or 0)
            except HubUnreachable:
                failures = 0 if (size_of(part) or 0) > most else failures + 1
                most = max(most, size_of(part) or 0)
                if failures >= TRIES:
                    raise
                time.sleep(failures)

    def _more(self, file: File, commit: str, part: Path, have: int) -> None:
        too_large = file.size > constants.MAX_HTTP_DOWNLOAD_SIZE
        if have > file.size or (have and too_large):  # HTTP cannot continue it
            part.unlink()
            have = 0
        url = self._url(file.path, commit)
        if not have and file.algorithm == "sha256":  # files in Xet are large files, with a SHA-256
            by_xet = self._xet_data(url)
            if by_xet and self._over_xet(by_xet, file, part):
                return
        if too_large:
            raise StagingError(
                f"{file.path} has {gb(file.size)}; the Hub serves files above 50 GB by Xet only.",
                do="Unset HF_HUB_DISABLE_XET on the node. If hf_xet is missing: `sparkfleet up` installs it.",
            )
        headers = build_hf_headers(token=self._token)
        with part.open("ab") as opened:
            try:
                bounded = cast(BinaryIO, _BoundedPart(opened, file, self._errors))
                http_get(url, bounded, resume_size=have, headers=headers, expected_size=file.size)
            except HfHubHTTPError as error:
                if error.response.status_code == 416:  # the server does not have the requested range
                    opened.truncate(0)
                raise

    def _xet_data(self, url: str) -> XetFileData | None:
        """Xet's reference of a file, if the Hub stores it in Xet and hf_xet is installed and not disabled."""
        if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
            return None
        found = get_hf_file_metadata(url, self._token, endpoint=self.endpoint)
        return found.xet_file_data

    def _over_xet(self, data: XetFileData, file: File, part: Path) -> bool:
        """Downloads by Xet; False if that failed: HTTP follows. The bytes are verified in either case."""
        part.touch()
        try:
            headers = build_hf_headers(token=self._token)
            xet_get(incomplete_path=part, xet_file_data=data, headers=headers, expected_size=file.size)
            if size_of(part) != file.size:
                raise ValueError(f"{size_of(part)} bytes arrived")
        except Exception as error:  # hf_xet raises classes of its own, which are not documented
            reason = shown(str(error) or type(error).__name__)
            self._note(f"{file.path}: Xet failed ({reason}); downloading it over HTTP instead.")
            part.unlink(missing_ok=True)
            return False
        return True

    def _leave_out(self, paths: Sequence[str]) -> None:
        """Report files of names that staging does not accept. Raises StagingError if an engine may load one of them."""
        for path in paths:
            if any(path.lower().endswith(suffix) for suffix in _LOADED):
                raise StagingError(
                    f"{self.name} has the file {shown(path)}; staging accepts letters, digits and _.+@=,- in names.",
                    means="An engine may load this file, so it cannot be left out.",
                    do=f"`hf download {self.name} --local-dir DIR` on a node, rename the file there and in the index that "
                    "names it, and deploy `model: DIR`.",
                )
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            self._note(
                f"{self.name}: left out {shown(paths[0])}{more}: names with other characters than letters, digits and "
                "_.+@=,-; no engine loads them."
            )

    def _listed(self, commit: str) -> Iterator[RepoFile]:
        with self._errors.worded():
            for count, entry in enumerate(
                self._api.list_repo_tree(self.name, recursive=True, revision=commit), start=1
            ):
                if count > MAX_FILES:
                    raise self._errors.odd(f"lists more than {MAX_FILES} files")
                if isinstance(entry, RepoFile) and may_be_wanted(entry.path):  # pictures may have any name
                    yield entry

    def _file(self, entry: RepoFile) -> File:
        try:
            if entry.lfs is not None:
                return File(path=entry.path, size=entry.lfs.size, digest=entry.lfs.sha256)
            return File(path=entry.path, size=entry.size, digest=entry.blob_id, algorithm="git-sha1")
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise self._errors.odd(f"lists {shown(entry.path)} in an invalid form ({reason})") from error

    def _url(self, path: str, commit: str) -> str:
        return hf_hub_url(self.name, path, revision=commit, endpoint=self.endpoint)


class _BoundedPart:
    """Partial file that cannot grow beyond its file's size: a server's answer may be endless."""

    def __init__(self, opened: BinaryIO, file: File, errors: HubErrors) -> None:
        self._opened = opened
        self._file = file
        self._errors = errors

    def write(self, chunk: bytes) -> int:
        """Appends a chunk. Raises StagingError."""
        if self._opened.tell() + len(chunk) > self._file.size:
            self._opened.truncate(0)
            raise self._errors.odd(f"sends more of {self._file.path} than the {self._file.size} bytes it has")
        return self._opened.write(chunk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)
