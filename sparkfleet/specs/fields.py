"""Types of text and containers in specs, each with the words of its error message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, Self, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sparkfleet.specs.model_name import TAG_FORM
from sparkfleet.values import Value

K = TypeVar("K")
V = TypeVar("V")

Where = tuple[str | int, ...]
"""Path of a field from the top of a file: `("links", 0, "rails")`."""

PROBLEMS = "problems"
"""Type of the validation error that carries a tuple of `Problem`s in its context."""


class Problem(NamedTuple):
    """One error: the path of the field from the checked value, and the words with the found and the expected value."""

    where: Where
    text: str


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one validation error with all `problems`; nothing if there are none."""
    if found := tuple(problems):
        words = " ".join(f"{'.'.join(map(str, where))}: {text}".removeprefix(": ") for where, text in found)
        raise PydanticCustomError(PROBLEMS, "{words}", {"words": words, "problems": found})


def escape(text: str) -> str:
    """`text` on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quote(text: str) -> str:
    """`text` in quotes on one line, shortened to 60 characters."""
    return f'"{escape(text if len(text) <= 60 else text[:59] + "…")}"'


def nearest(found: str, known: Iterable[str]) -> str | None:
    """The known name closest to `found`, letter case aside; None if none is similar."""
    if len(found) > 64:  # comparing is quadratic in the length
        return None
    names = {one.lower(): one for one in known}
    return next((names[one] for one in get_close_matches(found.lower(), names, n=1)), None)


def thousands(text: str) -> int | None:
    """131072 for "128K", the way in which people speak of a context; None for any other text."""
    return int(text[:-1]) * 1024 if re.fullmatch(r"[0-9]{1,6}[kK]", text, re.ASCII) else None


def unknown(noun: str, found: str, known: Iterable[str], *, also: Iterable[str] = ()) -> str:
    """The message for a name that is not in `known`. Names in `also` may be suggested, but are not listed."""
    names = tuple(known)
    meant = nearest(found, (*names, *also))
    shown = 12 if meant else 40  # behind a suggestion the list is for those that it does not help
    listed = ", ".join(names[:shown]) + (f", … ({len(names)} in all)" if len(names) > shown else "")
    hint = f' Did you mean "{meant}"?' if meant else ""
    return f"unknown {noun} {quote(found)}.{hint} Known: {listed}."


class Spec(Value):
    """A `Value` that people write. The docstring under a field is its description (`specs/field_descriptions.py`)."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterable[Problem]:
        """Errors of fields that are valid alone but contradict each other."""
        return ()


class FrozenDict(Mapping[K, V]):
    """An immutable mapping: hashable, picklable, a plain object in JSON."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._items = dict(items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        key, value = get_args(source) or (Any, Any)
        plain = core_schema.dict_schema(handler.generate_schema(key), handler.generate_schema(value))
        return core_schema.no_info_before_validator_function(
            lambda given: dict(given) if isinstance(given, cls) else given,
            core_schema.no_info_after_validator_function(cls, plain),
            serialization=core_schema.plain_serializer_function_ser_schema(dict, return_schema=plain),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        plain = handler(schema)
        # With pydantic's patternProperties, a key of any other form is valid, with any value.
        for pattern, value in plain.pop("patternProperties", {}).items():
            plain["propertyNames"] = {"pattern": pattern, **plain.get("propertyNames", {})}
            plain["additionalProperties"] = value
        return plain


@dataclass(frozen=True, slots=True)
class Form:
    """Text that matches `pattern` as a whole. Patterns list what is allowed, never what is forbidden."""

    pattern: str
    expected: str
    """Completes the sentence "Expected …"."""
    longest: int = 255
    """Characters."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$", "maxLength": self.longest}

    def check(self, text: str) -> str:
        """`text` itself. Raises an error with the expected form."""
        if len(text) > self.longest:
            raise PydanticCustomError(
                "form", "{expected}", {"expected": f"at most {self.longest} characters"}
            )
        if not re.fullmatch(self.pattern, text):
            small = f', such as "{text.lower()}"' if re.fullmatch(self.pattern, text.lower()) else ""
            raise PydanticCustomError("form", "{expected}", {"expected": self.expected + small})
        return text


@dataclass(frozen=True, slots=True)
class Unique:
    """A list without duplicates."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "uniqueItems": True}

    def check(self, items: tuple[str, ...]) -> tuple[str, ...]:
        """`items` themselves. Raises an error with the duplicates."""
        twice = [quote(item) for item, count in Counter(items).items() if count > 1]
        refuse([Problem((), f"{', '.join(twice)} is given twice. Expected each once.")] if twice else [])
        return items


class WrittenInt(int):
    """A whole number of a file, with its text there: `007` is 7, and "007" in a field of text (`AsWritten`)."""

    written: str


class WrittenFloat(float):
    """Any other number of a file, with its text there: `3.10`."""

    written: str


@dataclass(frozen=True, slots=True)
class AsWritten:
    """Text for which a file may have a number, without quotes. The text is the number's own, as it is written there."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.text, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "number"}]}

    def text(self, given: Any) -> Any:
        """The text of a number, and everything else as it is."""
        return given.written if isinstance(given, WrittenInt | WrittenFloat) else given


_PATH = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._+@=,-]+)+/?"
_PATH_WORDS = "letters, digits and . _ + @ = , - between slashes, without . and .. as parts"

NodeName = Annotated[
    str, Form(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", "a-z, 0-9 and inner dashes, at most 32 characters", 32)
]
PublicName = Annotated[
    str,
    Form(
        r"[a-z0-9][a-z0-9._-]{0,62}", "a-z, 0-9 and . _ -, a letter or digit first, at most 63 characters", 63
    ),
]
KeyName = PublicName
AliasName = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}",
        "letters, digits and . _ : / -, a letter or digit first, at most 128 characters",
        128,
    ),
]
USER_NAME = r"[A-Za-z_][A-Za-z0-9._-]{0,31}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,63})?"
"""A login: `nvidia`, or one of a directory service with its domain (`anna@corp.example`)."""
UserName = Annotated[
    str,
    Form(
        USER_NAME,
        "a user name: letters, digits and . _ -, at most 32, and @domain if its service has one",
        97,
    ),
]
Device = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", "a device name: letters, digits and . _ -, at most 31 characters"
    ),
]
PinnedKey = Annotated[
    str,
    Form(
        r"SHA256:[A-Za-z0-9+/]{43}",
        'a fingerprint: "SHA256:" and 43 characters, as `ssh-keygen -l` prints it',
        50,
    ),
]
AbsolutePath = Annotated[str, Form(_PATH, f"an absolute path: {_PATH_WORDS}", 1024)]
HomePath = Annotated[
    str, Form(rf"~?{_PATH}", f"an absolute path, or one that starts with ~/: {_PATH_WORDS}", 1024)
]
Domain = Annotated[
    str,
    Form(
        r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?",
        "a host name such as images.example.org, in lower case, without a scheme or a port",
        253,
    ),
]
HttpPath = Annotated[
    str, Form(r"/[A-Za-z0-9._~/-]*", "a path such as /health: letters, digits and . _ ~ / -")
]
EndpointPath = Annotated[
    str,
    Form(
        r"/v1(?:/[A-Za-z0-9_~:@-][A-Za-z0-9._~:@-]*)+(?:/\*)?",
        "a path below /v1 such as /v1/videos, or /v1/videos/* for all below it",
    ),
]
EndpointUrl = Annotated[
    str,
    Form(
        r"https?://(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?"
        r"(?:/[A-Za-z0-9._~-]+)*/?",
        "a base URL such as https://api.example.org/v1 or http://192.168.1.20:8080/v1, its host in lower case, without a"
        " user, a query or a fragment",
        1024,
    ),
]
Context = Annotated[int, Field(ge=1, le=100_000_000)]
Concurrency = Annotated[int, Field(ge=1, le=65_536)]
ForeignModel = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*",
        "a model's name: letters, digits and . _ : / @ + -, a letter or digit first",
        256,
    ),
]
WebOrigin = Annotated[
    str,
    Form(
        r"https?://(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::[1-9][0-9]{0,4})?",
        "an origin such as https://chat.example.org or http://192.168.1.5:3000, in lower case and without a path",
    ),
]
EnvName = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]*", "a variable name: letters, digits and _, no digit first")
]
OneLine = Annotated[
    str, Form(r"[^\x00-\x1f\x7f\ud800-\udfff]*", "one line of text without control characters", 65536)
]
ArgumentText = Annotated[OneLine, AsWritten()]
"""An argument of a command, or the value of a variable."""
ImageReference = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5}(?=/))?(/[a-z0-9][a-z0-9._-]*)*"
        r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?",
        "an image: [registry/]name[:tag][@sha256:digest]",
        512,
    ),
]
HUB_ADDRESS = r"https?:/+(?:huggingface\.co|hf\.co)/"
"""Pattern of the address of the Hub, as it begins the address of a model's page. A path has one slash where it has two."""
ModelId = Annotated[
    str,
    Form(
        r"builtin:[a-z0-9][a-z0-9-]{0,31}"
        rf"|{_PATH}"
        r"|(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
        rf"(@[A-Za-z0-9][A-Za-z0-9._/-]{{0,127}})?(:{TAG_FORM})?",
        'a Hub id "org/name", "org/name@revision" or "org/name:TAG" (a GGUF model), "builtin:NAME", or an absolute path',
        1024,
    ),
]
MemorySize = Annotated[
    str,
    Form(
        r"(0\.[0-9]{0,2}[1-9]|[1-9][0-9]{0,6}(\.[0-9]{1,3})?) ?(MiB|GiB|TiB|MB|GB|TB)",
        'a size with its unit, such as "24 GiB"',
    ),
]

_UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_bytes(size: str) -> int:
    """Bytes of a `MemorySize`, rounded down: "24 GiB" is 25769803776."""
    unit = size.lstrip("0123456789. ")
    return int(Decimal(size.removesuffix(unit)) * _UNITS[unit])
