"""Flags that name a model behind an address: its base URL, the environment variable that holds its key, and more fields of its requests. Neither a key nor a password is ever repeated: flags are written into manifests."""

import json
import os
import re
from typing import Any
from urllib.parse import urlsplit

from .errors import InputError

MOST_OPEN = 1000  # connections that the client keeps at most
OURS = ("model", "messages", "stream", "stream_options", "n")  # fields of a request that people leave alone


def check_url(flag: str, url: str) -> None:
    """InputError for what is no base URL. One with a password in it is refused without being repeated."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise InputError(f"--{flag} is no http or https address: give one like http://localhost:8000/v1.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        key_flag = flag.removesuffix("url") + "api_key_env"
        raise InputError(
            f"--{flag} has a password, a query or a fragment in it: give the plain base URL, and the key by --{key_flag}."
        )
    if parts.path.rstrip("/").endswith("/completions"):
        raise InputError(f"--{flag} {url} is the address of one call: leave /chat/completions out, it is added.")


def check_key_name(flag: str, variable: str) -> None:
    """InputError for what is no name of an environment variable. It may be a key, so it is not repeated."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise InputError(
            f"--{flag} is not the name of an environment variable: put the key into one, as export MY_KEY=…, and give its name, MY_KEY."
        )


def key_named(flag: str, variable: str | None) -> str | None:
    """The key that the environment variable holds, None if no variable is named; InputError, which never shows it, if it can be none."""
    if variable is None:
        return None
    check_key_name(flag, variable)
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"The environment variable {variable}, which --{flag} names, is not set: put the key into it.")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
            f"The environment variable {variable} holds {len(key)} characters that are no key; put the key into it."
        )
    return key


def read_request(flag: str, given: dict | str | None) -> dict[str, Any]:
    """The fields that a flag adds to each request, {} for None: a JSON object, or what a yaml file made of one. null stays, as it takes a field out.

    Raises:
        InputError: no JSON object, or it sets a field of this library's own.
    """
    if given is None:
        return {}
    try:
        fields = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise InputError(f"--{flag} {given!r} is not JSON ({error}).") from None
    if not isinstance(fields, dict):
        raise InputError(f"--{flag} {given!r}: a JSON object is wanted.")
    for name in OURS:
        if name in fields:
            raise InputError(f"--{flag} sets {name!r}, which is this library's own: leave it out.")
    return fields


def request_fields(flag: str, given: dict | str | None, defaults: dict[str, Any]) -> dict[str, Any]:
    """`defaults` changed by the fields of `read_request`; null takes one out."""
    fields = defaults | read_request(flag, given)
    return {name: value for name, value in fields.items() if value is not None}
