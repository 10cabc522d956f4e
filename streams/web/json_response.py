"""JSON answers."""

import msgspec
import orjson
from starlette.responses import Response


def json_response(value: object, *, status_code: int = 200) -> Response:
    body = orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS) + b"\n"
    return Response(body, status_code=status_code, media_type="application/json")


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, enc_hook=str)
