"""A registry of container images on loopback, as far as a pull asks it. No logins, no uploads."""

from __future__ import annotations

import json
from pathlib import Path

from aiohttp import web

ONE_BUILD = "application/vnd.oci.image.manifest.v1+json"
"""Type of a manifest that does not name its own."""


class FakeRegistry:
    """Has one image, under every name and tag that it is asked for.

    Args:
        layout: the image, as `podman save --format oci-dir` writes it; or builds of it for several architectures, as
            `podman manifest push --all` writes them.
    """

    def __init__(self, layout: Path) -> None:
        self._blobs = layout / "blobs" / "sha256"
        (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
        self._kind: str = entry["mediaType"]
        self.digest: str = entry["digest"].removeprefix("sha256:")
        """Of its manifest, or of the list of its builds."""

    def app(self) -> web.Application:
        """Routes of the registry."""
        app = web.Application()
        app.router.add_get("/v2/", self._greet)
        app.router.add_get("/v2/{name:.+}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{name:.+}/blobs/{digest}", self._blob)
        return app

    async def _greet(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _manifest(self, request: web.Request) -> web.Response:
        _, by_digest, digest = request.match_info["reference"].partition("sha256:")
        digest = digest if by_digest else self.digest
        if not (self._blobs / digest).is_file():
            raise web.HTTPNotFound
        body = (self._blobs / digest).read_bytes()
        kind = self._kind if digest == self.digest else json.loads(body).get("mediaType", ONE_BUILD)
        headers = {"content-type": kind, "docker-content-digest": f"sha256:{digest}"}
        return web.Response(body=body, headers=headers)

    async def _blob(self, request: web.Request) -> web.Response:
        file = self._blobs / request.match_info["digest"].removeprefix("sha256:")
        if not file.is_file():
            raise web.HTTPNotFound
        return web.Response(body=file.read_bytes())
