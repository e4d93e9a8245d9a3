"""Checks the environment variables that every HTTP client here reads: proxies, certificates, the address of the Hub.

A client reads all of them when it is made, whichever of them a request would use, but no proxy with `NO_PROXY=*`;
huggingface_hub reads HF_ENDPOINT when it is imported. Their own errors name neither the variable nor its value.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from sparkfleet.checkpoints.io.safe_io import shown
from sparkfleet.staging.errors import ConnectionVariableError

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""In small or capital letters."""
SCHEMES = ("http", "https", "socks5", "socks5h")
"""Of proxies."""
SOCKS = ("socks5", "socks5h")


def check_connection_variables(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ConnectionVariableError for the first variable with which no HTTP client can be made."""
    check_endpoint_variable(environment)
    for name in () if _no_proxies(environment) else PROXIES:
        variable = name if name in environment else name.upper()  # small letters count, empty ones too
        if value := environment.get(variable, "").strip():
            _check_proxy(variable, value)
    _check_certificates(environment)


def _no_proxies(environment: Mapping[str, str]) -> bool:
    """True if `NO_PROXY` has `*`: no client uses a proxy then, whatever the others are."""
    excluded = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    return "*" in (one.strip() for one in excluded.split(","))


def check_endpoint_variable(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ConnectionVariableError if HF_ENDPOINT is no address."""
    if given := environment.get("HF_ENDPOINT"):
        check_hub_address(given)


def check_hub_address(given: str) -> None:
    """Raises ConnectionVariableError if an address of a Hub is none."""
    if not is_address(given, ("http", "https")):
        raise ConnectionVariableError(
            f"HF_ENDPOINT is {without_credentials(given)}, which is not an http(s) address.",
            do="Set it to the address of a Hub, such as https://huggingface.co, or unset it.",
        )


def is_address(url: str, schemes: tuple[str, ...]) -> bool:
    """True if `url` has one of the schemes, a host, and a port that can be one, if any."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # "http://[x", "http://x:99999"
        return False


def without_credentials(url: str) -> str:
    """An address for a message: one line, without user and password."""
    scheme, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return shown(f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}")


def _check_proxy(variable: str, value: str) -> None:
    url = value if "://" in value else f"http://{value}"
    what = f"{variable} is {without_credentials(value)}"
    if not is_address(url, SCHEMES):
        raise ConnectionVariableError(
            f"{what}, which is no proxy that can be used.",
            means="A proxy is an address with http, https or socks5.",
            do=f"Correct it, such as http://HOST:PORT or socks5://HOST:PORT, or `unset {variable}`.",
        )
    if urlsplit(url).scheme in SOCKS and find_spec("socksio") is None:
        raise ConnectionVariableError(
            f"{what}, and SOCKS needs the package socksio, which is not installed here.",
            do=f"`pip install 'httpx2[socks]'` into this environment installs it; or `unset {variable}`.",
        )


def _check_certificates(environment: Mapping[str, str]) -> None:
    file, folder = environment.get("SSL_CERT_FILE"), environment.get("SSL_CERT_DIR")
    reason = ""
    if file:
        variable, value = "SSL_CERT_FILE", file
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
        except ssl.SSLError:
            reason = "contains no certificate in PEM format"
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
    elif folder:  # a client reads it only without a file
        variable, value = "SSL_CERT_DIR", folder
        reason = "" if Path(folder).is_dir() else "is not a directory"
    if reason:
        raise ConnectionVariableError(
            f"{variable} is {shown(value)}, which {reason}.",
            means="Without certificates of authorities no https server can be checked.",
            do=f"Set it to a file such as /etc/ssl/certs/ca-certificates.crt, or `unset {variable}`."
            if file
            else f"Set it to a directory such as /etc/ssl/certs, or `unset {variable}`.",
        )
