"""One HTTP request for JSON; follows no redirect."""

from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, cast
from urllib.parse import urlencode

import msgspec

#: Most bytes of an answer besides its rows' limit.
_OTHER_BYTES: Final = 1024 * 1024


class Reply(msgspec.Struct, frozen=True):
    """Status and JSON object of an answer; None if it is something else."""

    status: int
    fields: dict[str, Any] | None


def fetch_json(
    server: str,
    path: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    bytes_max: int,
    tls: bool = False,
) -> Reply:
    """Send one GET request to `host:port`.

    Raises:
        OSError: The server can't be reached, or does not answer in time or in HTTP.
    """
    make = HTTPSConnection if tls else HTTPConnection
    connection = make(server, timeout=max(timeout_s, 0.001))
    try:
        connection.request("GET", f"{path}?{urlencode(parameters)}", headers=dict(headers))
        limit = bytes_max + _OTHER_BYTES
        with connection.getresponse() as response:
            body = response.read(limit + 1)
    except (HTTPException, ValueError) as error:
        raise OSError(f"{server} does not answer in HTTP ({type(error).__name__})") from error
    finally:
        connection.close()
    if len(body) > limit:
        raise OSError(f"{server} answers with more than {limit:,} bytes")
    return Reply(response.status, _fields(body))


def _fields(body: bytes) -> dict[str, Any] | None:
    try:
        # orjson makes floats of numbers beyond 64 bits.
        content: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None
