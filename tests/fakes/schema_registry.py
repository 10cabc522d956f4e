"""Schema registry over HTTP: the part of Confluent's REST API that serialisers use.

It has subjects, versions, global ids, references, and BACKWARD compatibility of Avro records: a new
field needs a default. Each request takes the next status of `answers`; None is a proper response.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Reply = tuple[int, dict[str, Any]]


class SchemaRegistry:
    def __init__(self) -> None:
        self.url = ""
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self.answers: list[int | None] = []

    def reply(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        self.requests.append(f"{method} {path}")
        failure = self.answers.pop(0) if self.answers else None
        if failure is not None:
            return failure, {"error_code": failure * 100 + 1, "message": "told to fail"}
        path = unquote(path.partition("?")[0])
        if method == "GET" and (found := re.fullmatch(r"/schemas/ids/(\d+)", path)):
            return self._schema(int(found[1]))
        if method == "POST" and (found := re.fullmatch(r"/subjects/(.+)/versions", path)):
            return self._register(found[1], body)
        if method == "POST" and (found := re.fullmatch(r"/subjects/(.+)", path)):
            return self._look_up(found[1], body)
        if method == "GET" and (found := re.fullmatch(r"/subjects/(.+)/versions/(.+)", path)):
            return self._version(found[1], found[2])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def add(
        self, subject: str, schema: Any, *references: dict[str, Any], schema_type: str = "AVRO"
    ) -> int:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": schema_type, "references": list(references)}
        status, answer = self._register(subject, body)
        assert status == 200, answer
        return int(answer["id"])

    def _schema(self, schema_id: int) -> Reply:
        if not 1 <= schema_id <= len(self.schemas):
            return 404, {"error_code": 40403, "message": f"Schema {schema_id} not found"}
        return 200, self.schemas[schema_id - 1]

    def _register(self, subject: str, body: dict[str, Any]) -> Reply:
        schema = _plain(body)
        for reference in schema.get("references", ()):
            if self._version(reference["subject"], str(reference["version"]))[0] != 200:
                return 422, {"error_code": 42201, "message": "Invalid schema: unknown reference"}
        versions = self.subjects.setdefault(subject, [])
        if schema not in self.schemas:
            if versions and not _is_backward(self.schemas[versions[-1] - 1], schema):
                return 409, {
                    "error_code": 409,
                    "message": "Schema being registered is incompatible",
                }
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        if schema_id not in versions:
            versions.append(schema_id)
        return 200, {"id": schema_id}

    def _look_up(self, subject: str, body: dict[str, Any]) -> Reply:
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found"}
        schema = _plain(body)
        for version, schema_id in enumerate(versions, start=1):
            if self.schemas[schema_id - 1] == schema:
                return 200, {"subject": subject, "version": version, "id": schema_id, **schema}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _version(self, subject: str, version: str) -> Reply:
        versions = self.subjects.get(subject)
        if not versions:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        found = {"subject": subject, "version": number, "id": versions[number - 1]}
        return 200, {**found, **self.schemas[versions[number - 1] - 1]}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            registry.authorizations.append(self.headers.get("Authorization"))
            status, answer = registry.reply(method, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as the registry stores it; the type AVRO is omitted."""
    kept = {
        name: body[name]
        for name in ("schema", "schemaType", "references", "ruleSet")
        if body.get(name)
    }
    if kept.get("schemaType") == "AVRO":
        del kept["schemaType"]
    return kept


def _is_backward(old: dict[str, Any], new: dict[str, Any]) -> bool:
    if "schemaType" in new or not all('"fields"' in each["schema"] for each in (old, new)):
        return True
    known = {field["name"] for field in json.loads(old["schema"])["fields"]}
    return all(
        field["name"] in known or "default" in field
        for field in json.loads(new["schema"])["fields"]
    )
