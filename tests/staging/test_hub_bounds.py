"""An answer of the Hub without a length, as chunked ones are: no more of it is read than any list of files has."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from sparkfleet.staging.errors import StagingError
from sparkfleet.staging.hub import ANSWER_BYTES, CHUNK_BYTES, Hub

ENDLESS = 4 * ANSWER_BYTES


async def test_a_chunked_answer_that_is_too_long_is_not_read_to_its_end(serve) -> None:  # type: ignore[no-untyped-def]
    sent = 0

    async def about(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(json.dumps({"sha": "0" * 40}).encode())
        try:
            while sent < ENDLESS:  # blanks: what comes before them is JSON
                await answer.write(b" " * CHUNK_BYTES)
                sent += CHUNK_BYTES
        except ConnectionResetError:
            pass
        return answer

    app = web.Application()
    app.router.add_get("/api/models/{tail:.*}", about)
    async with Hub("tests/tiny", endpoint=await serve(app), backoff_s=0.001) as hub:
        with pytest.raises(StagingError, match="does not answer in JSON"):
            await hub.manifest("main")
    assert sent < 2 * ANSWER_BYTES
