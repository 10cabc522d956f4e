"""JSON answers, also of errors."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_NOT_FOUND: Final = 404


def json_response(value: object, *, status_code: int = 200) -> Response:
    body = orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS) + b"\n"
    return Response(body, status_code=status_code, media_type="application/json")


def problem(status_code: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error, as `Problem` of the OpenAPI document has it."""
    response = json_response({"error": text}, status_code=status_code)
    response.headers.update(headers or {})
    return response


async def _refused(_: Request, error: Exception) -> Response:
    """Answer for a path or method that no route has."""
    assert isinstance(error, HTTPException)
    text = error.detail
    if error.status_code == _NOT_FOUND:
        text = "there is no such path; /openapi.json has all paths of queries"
    return problem(error.status_code, text, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return problem(
        500, f"the answer failed ({type(error).__name__}); the worker's log has the trace"
    )


#: Answers of Starlette for errors outside a route, in JSON.
PROBLEM_HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Any]]] = {
    HTTPException: _refused,
    Exception: _failed,
}


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, enc_hook=str)
