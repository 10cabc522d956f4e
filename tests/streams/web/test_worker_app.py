"""Routes of a worker's HTTP server, and who may read them."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.streams.web.processes import TOKEN, streams
from tidewheel import KafkaStreams, KafkaStreamsState, web
from tidewheel.streams.web.worker_app import worker_app

BEARER = {"authorization": f"Bearer {TOKEN}"}


def _client(app: KafkaStreams, **options: str) -> TestClient:
    return TestClient(web.app(app, **options), base_url="http://localhost:8080")


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [
        ("CREATED", 200, 503),
        ("REBALANCING", 200, 503),
        ("RUNNING", 200, 200),
        ("PENDING_SHUTDOWN", 200, 503),
        ("PENDING_ERROR", 503, 503),
        ("ERROR", 503, 503),
        ("NOT_RUNNING", 503, 503),
    ],
)
def test_health_and_readiness_follow_the_state(
    state: str, health: int, ready: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = streams(tmp_path)
    monkeypatch.setattr(KafkaStreams, "state", KafkaStreamsState(state))
    client = _client(app, token=TOKEN)
    assert client.get("/healthz").status_code == health
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (ready, {"state": state})


@pytest.mark.parametrize("path", ["/metrics", "/state", "/stores", "/openapi.json", "/nothing"])
def test_everything_else_needs_the_token(path: str, tmp_path: Path) -> None:
    client = _client(streams(tmp_path), token=TOKEN)
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"authorization": "Bearer other"}).status_code == 401
    assert client.get(path, headers=BEARER).status_code != 401


def test_state_has_the_tasks_and_figures(tmp_path: Path) -> None:
    answer = _client(streams(tmp_path)).get("/state").json()
    assert (answer["application_id"], answer["state"], answer["tasks"]) == ("shop", "CREATED", [])
    assert answer["metrics"]["state"] == "CREATED"


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    answer = _client(streams(tmp_path)).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tidewheel_client_state{application="shop",state="CREATED"} 1.0' in answer.text


def test_without_a_token_only_known_names_are_answered(tmp_path: Path) -> None:
    served = worker_app(streams(tmp_path).view, names=("shop-3",))
    for host, code in [("shop-3:80", 200), ("127.0.0.1", 200), ("evil.example", 421)]:
        client = TestClient(served, base_url=f"http://{host}")
        assert client.get("/metrics").status_code == code
    with_token = worker_app(streams(tmp_path).view, names=("shop-3",), token=TOKEN)
    client = TestClient(with_token, base_url="http://shop.default.svc")
    assert client.get("/metrics", headers=BEARER).status_code == 200


def test_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    client = _client(streams(tmp_path))
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    assert client.get("/metrics", headers=headers).status_code == 403
