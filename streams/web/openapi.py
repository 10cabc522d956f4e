"""OpenAPI document of interactive queries."""

from typing import Any, Final

from tidewheel.streams.web.query_request import COMMON, REQUIRED_KEYS, SHAPES, Limits, Shape

_TYPES: Final[dict[str, dict[str, Any]]] = {
    "max_lag": {"type": "integer", "minimum": 0},
    "stale": {"type": "boolean"},
    "local": {"type": "boolean"},
    "isolation_level": {"type": "string", "enum": ["read_committed", "read_uncommitted"]},
}
_STORE: Final = {"name": "store", "in": "path", "required": True, "schema": {"type": "string"}}
_PROBLEMS: Final = {
    "400": "A parameter is wrong",
    "401": "The token is missing or wrong",
    "403": "A page of another site asked",
    "404": "The topology has no such store, or there is no such path",
    "405": "The method is not GET",
    "421": "The Host header has a name that the server does not answer to",
    "500": "A stored row can't be read, or the server failed",
    "503": "The task is moving, behind, or on a member that does not answer: ask again",
    "504": "The worker did not answer in time",
}


def document(root_path: str, limits: Limits) -> dict[str, Any]:
    """Return the document for queries that are served below a path."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Interactive queries",
            "version": "1",
            "description": "Rows of the stores of a Tidewheel application. Keys of plain serdes are plain text, `bytes` are "
            "base64, all other keys are JSON. Times are ms since the epoch or ISO 8601. "
            f"An answer has at most {limits.rows:,} rows and {limits.size_bytes:,} bytes.",
        },
        "servers": [{"url": root_path or "/"}],
        "paths": {
            "/stores": {"get": _operation("stores", "All stores", [], {"type": "object"})},
            "/stores/{store}": {
                "get": _operation(
                    "store", "One store and its tasks here", [_STORE], {"type": "object"}
                )
            },
            **{
                f"/stores/{{store}}/{kind}": {
                    "get": _operation(
                        kind, _texts(shapes), _parameters(shapes, limits), _ROWS_REFERENCE
                    )
                }
                for kind, shapes in SHAPES.items()
            },
        },
        "components": {
            "schemas": {"Rows": _ROWS, "Row": _ROW, "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _texts(shapes: tuple[Shape, ...]) -> str:
    return "; ".join(f"{shape.text} ({', '.join(sorted(shape.kinds))})" for shape in shapes)


def _operation(
    name: str, text: str, parameters: list[dict[str, Any]], schema: dict[str, Any]
) -> dict[str, Any]:
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "operationId": name,
        "summary": text,
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "The answer",
                "content": {"application/json": {"schema": schema}},
            },
            **{
                code: {"description": reason, "content": problem}
                for code, reason in _PROBLEMS.items()
            },
        },
    }


def _parameters(shapes: tuple[Shape, ...], limits: Limits) -> list[dict[str, Any]]:
    types = {
        **_TYPES,
        "limit": {"type": "integer", "minimum": 1, "maximum": limits.rows},
        "timeout_ms": {"type": "integer", "minimum": 1, "maximum": limits.timeout_ms},
    }
    keys = dict.fromkeys(key for shape in shapes for key in shape.keys)
    times = dict.fromkeys(time for shape in shapes for time in shape.times)
    found: list[dict[str, Any]] = [_STORE]
    found += [_query(key, "A key", {"type": "string"}, key in REQUIRED_KEYS) for key in keys]
    found += [_query(time, "A time", {"type": "string"}) for time in times]
    if any(shape.is_reversible for shape in shapes):
        found.append(_query("reverse", "true: the last one first", {"type": "boolean"}))
    found += [
        _query(name, text, types.get(name, {"type": "string"})) for name, text in COMMON.items()
    ]
    return found


def _query(name: str, text: str, schema: dict[str, Any], required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "description": text,
        "required": required,
        "schema": schema,
    }


_MS: Final = {"type": "integer"}
_ROW: Final = {
    "type": "object",
    "required": ["key", "value"],
    "properties": {
        "key": {},
        "value": {},
        "timestamp": _MS,
        "valid_to": {"type": ["integer", "null"]},
        "start": _MS,
        "end": _MS,
        "partition": {"type": "integer"},
    },
}
_ROWS: Final = {
    "type": "object",
    "required": ["store", "rows", "partitions", "truncated"],
    "properties": {
        "store": {"type": "string"},
        "rows": {"type": "array", "items": {"$ref": "#/components/schemas/Row"}},
        "partitions": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "role": {"enum": ["active", "standby", "learner", "global"]},
                    "lag": {"type": "integer"},
                    "position": {
                        "type": ["object", "null"],
                        "additionalProperties": {"type": "integer"},
                    },
                    "server": {"type": ["string", "null"]},
                },
            },
        },
        "truncated": {"enum": ["rows", "bytes", "time", None]},
    },
}
_ROWS_REFERENCE: Final = {"$ref": "#/components/schemas/Rows"}
_PROBLEM: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
