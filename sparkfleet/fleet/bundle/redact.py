"""Replaces secrets and identities in text by stand-ins that stay the same throughout a report. Pure.

Structure that a reader needs is kept: two addresses in one subnet still share it, and a name is the same name everywhere.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from sparkfleet.runtime.sealed_env import names_secret

_PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL)
_TOKENS = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{12,}|hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})"
)
_SEALED = re.compile(r"\bsealed:\d+:[A-Za-z0-9+/=_-]+")
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_QUOTED = r"(?:\\*\"[^\"\n]*\"|'[^'\n]*'(?:\"'\"'[^'\n]*')*)"
"""A text in quotes, also escaped ones, and as `shlex.quote` writes one with an apostrophe."""
_VALUE = rf"(\[\s*(?:{_QUOTED}[\s,]*)+\]?|\[[^\]\n]*\]?|(?:\w+\(?)?{_QUOTED}|[^\s,;}}\])\"']+)"
"""A value, or a list of values."""
_NAMES = "password|passwd|passphrase|secret|credentials?|(?:api|access|private)[_-]?key"
_ASSIGNED = re.compile(
    rf"(?i)(\b[a-z0-9_.-]*(?:{_NAMES}|(?:^|[_-])(?:token|pass)|\btoken)\b\\*[\"']?\s*[:=]\s*){_VALUE}"
)
"""A field whose name is that of a secret, and its value or list of values. `max_tokens` is none: its name goes on."""
_VARIABLE = re.compile(rf"(\b([A-Z][A-Z0-9_]{{2,}})\\*[\"']?\s*[:=]\s*){_VALUE}")
"""A variable, and its value. Every name is replaced whose value `EnvSealer` would seal as that of a secret."""
_OPTION = re.compile(
    rf"(?i)((?<![\w-])--?(?:[a-z0-9_.-]*[_.-])?(?:{_NAMES}|token)"
    r"(?:[ \t]+|\\*[\"']?\s*,\s*|\\*[\"']?[ \t]*\n[ \t]*-[ \t]+))"
    rf"(?!-)({_QUOTED}|(?:(?<=[ \t])[^\s\"']+|[^\s,\]\"']+))"
)
"""An option with the name of a secret, and its value: in a command line, or the next element of a list, as JSON or YAML."""
_URL_PASSWORD = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s:/@\"']*:)[^\s/@\"']+(?=@)")
_SECRET_FIELD = re.compile(rf"(?i){_NAMES}|(?:^|[_-])(?:token|pass)$")
_SECRET_HEX = re.compile(r"(?<!sha256:)(?<![0-9A-Fa-f-])[0-9a-f]{64}(?![0-9A-Fa-f])")
"""Our own secrets. A digest of an image has the same form and is named as one."""
_SSH_KEY = re.compile(r"\b(SHA256:|(?:ssh|ecdsa)-[a-z0-9-]+\s+)([A-Za-z0-9+/]{40,}=*)")
_UUID = re.compile(r"\b(GPU-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_SERIAL = re.compile(r"(?i)(\bserial(?:[ _]?(?:number|no))?[\"']?\s*[:=]\s*[\"']?)([A-Za-z0-9-]{6,})")
_SERIAL_OF_PCI = re.compile(r"(\bSerial Number )([0-9a-f]{2}(?:-[0-9a-f]{2}){7})\b")
"""`lspci -vv` of a NIC, as root: its MAC with two bytes more."""
_MACHINE_ID = re.compile(r"(\bmachine[-_]id[\"']?\s*[:=]\s*[\"']?)([0-9a-f]{32})\b")
_GUID = re.compile(r"(?<![\w:.])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])")
"""An RDMA device's GUID, which contains its MAC."""
_MAIL = re.compile(r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+\b")
_MAC = re.compile(r"(?<![0-9A-Fa-f:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:])")
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:<]|\.\d)")
_HOME = re.compile(r"(?<!/sparkfleet)(/home/|/Users/)((?:[\w.@-]|\\u[0-9a-f]{4}|<[\w-]+>)+)")
"""A home directory; the state directory of a fleet `home` is none."""
_PROMPT = re.compile(r"(?im)^.*\b(?:prompt|messages|content)[\"']?\s*[:=]\s*[\"'\[{].*$")
"""Lines with a request's text: engines log it if their owner turned that on."""

COMMON = frozenset(
    [
        "root",
        "nvidia",
        "ubuntu",
        "admin",
        "user",
        "local",
        "localhost",
        "this",
        "head",
        "node",
        "spark",
        "sparks",
        "default",
        "test",
        "here",
        "host",
    ]
)
"""Names that identify nobody, or are words of their own."""
SHORTEST = 4
"""Characters of a name that is replaced: a shorter one is part of too many words."""


class Redactor:
    """Replaces secrets and identities, and counts what it has replaced.

    Args:
        secrets: texts that must not appear, such as the fleet's own tokens.
        names: names of people, hosts and nodes, by kind: `{"node": ["spark-of-anna"]}`.
    """

    def __init__(self, secrets: Iterable[str] = (), names: Mapping[str, Iterable[str]] | None = None) -> None:
        self._secrets = sorted({one for one in secrets if len(one) >= SHORTEST}, key=len, reverse=True)
        self._names = [
            (spelling, name.lower(), kind)
            for kind, found in (names or {}).items()
            for name in found
            if len(name) >= SHORTEST and name.lower() not in COMMON
            for spelling in {name, json.dumps(name)[1:-1]}  # our programs on nodes print JSON: \\u00fc for ü
        ]
        self._names.sort(key=lambda pair: len(pair[0]), reverse=True)
        self._known: dict[tuple[str, str], str] = {}
        self.counts: Counter[str] = Counter()
        """Replacements by kind."""

    def text(self, text: str) -> str:
        """`text` without secrets and identities."""
        for secret in self._secrets:
            if secret in text:
                self.counts["secret"] += text.count(secret)
                text = text.replace(secret, "<secret>")
        for pattern, kind, form in (
            (_PEM, "secret", "<secret>"),
            (_PROMPT, "line with a prompt", "<line with a prompt>"),
            (_TOKENS, "secret", "<secret>"),
            (_SEALED, "secret", "<secret>"),
            (_BEARER, "secret", r"\1\2<secret>"),
            (_URL_PASSWORD, "secret", r"\1<secret>"),
            (_OPTION, "secret", r"\1<secret>"),
            (_ASSIGNED, "secret", r"\1<secret>"),
            (_SECRET_HEX, "secret", "<secret>"),
        ):
            text, count = pattern.subn(form, text)
            self.counts[kind] += count
        text = _VARIABLE.sub(self._variable, text)
        for pattern, kind in (
            (_SSH_KEY, "key"),
            (_SERIAL, "serial"),
            (_SERIAL_OF_PCI, "serial"),
            (_MACHINE_ID, "machine-id"),
        ):
            text = pattern.sub(self._field(kind), text)
        text = _MAIL.sub(self._alias("mail"), text)
        text = _UUID.sub(self._alias("uuid"), text)
        text = _GUID.sub(self._alias("guid"), text)
        text = _MAC.sub(self._mac, text)
        text = _IPV6.sub(self._ipv6, text)
        text = _IPV4.sub(self._ipv4, text)
        for spelling, name, kind in self._names:
            text = re.sub(
                rf"(?<![\w<]){re.escape(spelling)}(?![\w>])",
                partial(self._replaced, kind, name),
                text,
                flags=re.IGNORECASE,
            )
        return _HOME.sub(self._home, text)  # after the names, which may have spaces

    def document(self, value: Any, field: str = "") -> Any:
        """A JSON value, each of its texts without secrets and identities. Names of fields stay."""
        match value:
            case str() if value and _is_secret(field):
                self.counts["secret"] += 1
                return "<secret>"
            case str():
                return self.text(value)
            case list() | tuple():
                before = ("", *value)
                return [
                    self.document(one, before[n] if _is_secret_option(before[n]) else field)
                    for n, one in enumerate(value)
                ]
            case dict():
                return {self.text(str(key)): self.document(one, str(key)) for key, one in value.items()}
        return value

    def _variable(self, found: re.Match[str]) -> str:
        if found[3] == "<secret>" or not names_secret(found[2]):
            return found[0]
        self.counts["secret"] += 1
        return f"{found[1]}<secret>"

    def _alias(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda found: self._named(kind, found[0].lower())

    def _field(self, kind: str) -> Callable[[re.Match[str]], str]:
        """A replacement of the second part of a match; the first one names the field."""
        return lambda found: found[1] + self._named(kind, found[2])

    def _named(self, kind: str, value: str) -> str:
        """The stand-in of a value: `<mac-2>`."""
        self.counts[kind] += 1
        if (kind, value) not in self._known:
            number = 1 + sum(known == kind for known, _ in self._known)
            self._known[kind, value] = f"<{kind}-{number}>"
        return self._known[kind, value]

    def _mac(self, found: re.Match[str]) -> str:
        """Stand-in of a MAC. Those of nobody stay: broadcast, and the loopback's zeros."""
        return found[0] if set(found[0].lower()) in ({"f", ":"}, {"0", ":"}) else self._alias("mac")(found)

    def _replaced(self, kind: str, name: str, _: re.Match[str]) -> str:
        return self._named(kind, name)

    def _home(self, found: re.Match[str]) -> str:
        user = found[2]
        is_replaced = user in COMMON or re.fullmatch(r"<[\w-]+>", user)
        return found[0] if is_replaced else found[1] + self._named("user", user.lower())

    def _ipv4(self, found: re.Match[str]) -> str:
        """`<subnet-1>.2`: the subnet of 256 addresses stays recognisable, and so does a host in it."""
        try:
            address = ipaddress.IPv4Address(found[0])
        except ValueError:
            return found[0]
        if (
            address.is_loopback
            or address.is_unspecified
            or address.is_multicast
            or str(address).startswith("255.")
        ):
            return found[0]
        subnet, _, host = found[0].rpartition(".")
        return f"{self._named('subnet', subnet)}.{host}"

    def _ipv6(self, found: re.Match[str]) -> str:
        """Stand-in of an address, of which its kind stays: `::ffff:<subnet-1>.2` (a rail's GID), `fe80::<ipv6-1>`."""
        try:
            address = ipaddress.IPv6Address(found[0])
        except ValueError:
            return found[0]
        if address.is_loopback or address.is_unspecified:
            return found[0]
        if address.ipv4_mapped is not None:
            return "::ffff:" + _IPV4.sub(self._ipv4, str(address.ipv4_mapped))
        kind = "fe80::" if address.is_link_local else ""
        return kind + self._named("ipv6", address.compressed)


def _is_secret(field: str) -> bool:
    return _SECRET_FIELD.search(field) is not None or (field.isupper() and names_secret(field))


def _is_secret_option(word: Any) -> bool:
    """True for an element of a command whose value is the next one: `--api-key`, but not `--api-key=x`."""
    return (
        isinstance(word, str)
        and word.startswith("-")
        and _SECRET_FIELD.search(word) is not None
        and "=" not in word
    )
