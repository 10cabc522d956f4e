"""The OpenAPI document agrees with the routes."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.streams.web.processes import TOKEN, streams
from tidewheel import web
from tidewheel.streams.web.query_request import COMMON, SHAPES

BEARER = {"authorization": f"Bearer {TOKEN}"}


def _document(tmp_path: Path) -> dict[str, Any]:
    client = TestClient(web.queries(streams(tmp_path)), base_url="http://localhost")
    document: dict[str, Any] = client.get("/openapi.json").json()
    return document


def test_each_path_is_served_and_each_parameter_known(tmp_path: Path) -> None:
    document = _document(tmp_path)
    assert document["openapi"].startswith("3.1")
    client = TestClient(web.queries(streams(tmp_path)), base_url="http://localhost")
    for path, methods in document["paths"].items():
        parameters = methods["get"]["parameters"]
        answer = client.get(path.format(store="rows"))
        assert answer.status_code in (200, 400, 503), path
        names = {parameter["name"] for parameter in parameters}
        if path.count("/") == 3:
            kind = path.rpartition("/")[2]
            expected = {key for shape in SHAPES[kind] for key in (*shape.keys, *shape.times)}
            assert names - {"reverse"} == {"store", *COMMON, *expected}
        assert methods["get"]["operationId"]


def test_references_lead_somewhere(tmp_path: Path) -> None:
    document = _document(tmp_path)
    references = list(_references(document))
    assert references
    for reference in references:
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]


def _references(part: Any) -> Any:
    if isinstance(part, dict):
        yield from [part["$ref"]] if "$ref" in part else []
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def test_queries_before_the_start_say_so(tmp_path: Path) -> None:
    client = TestClient(web.queries(streams(tmp_path)), base_url="http://localhost")
    answer = client.get("/stores/rows/get", params={"key": "a"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert client.get("/stores/other/get", params={"key": "a"}).status_code == 404
    assert [store["name"] for store in client.get("/stores").json()["stores"]] == ["rows"]


def test_limits_and_problems_are_as_documented(tmp_path: Path) -> None:
    document = _document(tmp_path)
    query = document["paths"]["/stores/{store}/get"]["get"]
    schemas = {parameter["name"]: parameter["schema"] for parameter in query["parameters"]}
    app = web.app(streams(tmp_path), token=TOKEN)
    client = TestClient(app, base_url="http://localhost", headers=BEARER)
    problems = [
        client.get("/stores/rows/nope"),
        client.get("/nope"),
        client.post("/stores/rows/get", params={"key": "a"}),
        client.get("/stores/rows/get?key=%ff"),
        client.get("/stores/other/get?key=a"),
        client.get("/stores", headers={"authorization": "Bearer other"}),
        client.get("/stores", headers={"host": "a, b:c"}),
        client.get("/stores", headers={"sec-fetch-site": "cross-site"}),
        *(
            client.get("/stores/rows/range", params={name: schemas[name]["maximum"] + 1})
            for name in ("limit", "timeout_ms")
        ),
    ]
    codes = [answer.status_code for answer in problems]
    assert codes == [404, 404, 405, 400, 404, 401, 421, 403, 400, 400]
    for answer in problems:
        assert answer.headers["content-type"] == "application/json"
        assert isinstance(answer.json()["error"], str)
        assert str(answer.status_code) in query["responses"]
