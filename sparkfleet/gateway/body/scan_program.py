"""Program that reads long bodies for the gateway: parsing 32 MiB on its event loop would hold up every stream.

It reads requests from its standard input and answers on its standard output until the input ends. Request: two lengths (4
bytes each, network order), the content type, the body. Answer: a length, and JSON of `ScanAnswer`.
"""

from __future__ import annotations

import os
import resource
import struct
from typing import BinaryIO

from sparkfleet.gateway.body.json_caps import check_caps
from sparkfleet.gateway.body.model_span import model_span
from sparkfleet.gateway.errors.api_error import ApiError
from sparkfleet.gateway.errors.request_errors import bad_request
from sparkfleet.gateway.request_parser import RequestTarget, is_form, parse_target
from sparkfleet.values import Value

LENGTHS = struct.Struct("!II")
LENGTH = struct.Struct("!I")
MEMORY_BYTES = 1 << 30
"""Address space beside that for the body: the interpreter, and a million values, which take some 100 MB."""
MEMORY_PER_BYTE = 10
"""Address space for each byte of the body: a text takes four if one of its characters is outside the BMP, and is held
twice."""


class ScanFault(Value):
    """The parts of an ApiError that a client sees."""

    what: str
    means: str
    do: str
    status: int
    code: str
    kind: str
    param: str | None


class ScanAnswer(Value):
    """Model and requirements of a body, or its fault."""

    found: RequestTarget | ScanFault

    def target(self) -> RequestTarget:
        """The model and the requirements. Raises ApiError for its fault."""
        if isinstance(self.found, ScanFault):
            raise ApiError(**self.found.model_dump())
        return self.found


def scan(content_type: bytes, body: bytes | bytearray) -> ScanAnswer:
    """Reads one body, whatever it has."""
    fields = {b"content-type": content_type}
    try:
        if not is_form(fields):
            check_caps(body)
        found = parse_target(b"", fields, body)
    except ApiError as error:
        return _fault(error)
    except MemoryError:
        return _fault(bad_request("The request body takes too much memory to read.", code="too_complex"))
    return ScanAnswer(found=found if is_form(fields) else found._replace(span=model_span(body)))


def _fault(error: ApiError) -> ScanAnswer:
    return ScanAnswer(found=ScanFault(**{name: getattr(error, name) for name in ScanFault.model_fields}))


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    while len(lengths := source.read(LENGTHS.size)) == LENGTHS.size:
        type_length, body_length = LENGTHS.unpack(lengths)
        _limit_memory(body_length)
        content_type, body = source.read(type_length), bytearray(body_length)
        if source.readinto(body) != body_length:  # type: ignore[attr-defined]  # a BufferedReader
            return
        answer = scan(content_type, body).model_dump_json().encode()
        del body
        sink.write(LENGTH.pack(len(answer)) + answer)
        sink.flush()


def _limit_memory(body_length: int) -> None:
    most = MEMORY_BYTES + MEMORY_PER_BYTE * body_length
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))


def main() -> None:
    """Answers until the gateway closes the connection, or is gone."""
    with open(os.dup(0), "rb") as source, open(os.dup(1), "wb") as sink:
        os.dup2(2, 1)  # what else is printed is no answer
        _serve(source, sink)


if __name__ == "__main__":
    main()
