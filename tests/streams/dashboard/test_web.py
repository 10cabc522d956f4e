"""Answers and refusals of the dashboard."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.streams.dashboard.polled_groups import ATTACKS, EVIL, forged_group, polled_group
from tidewheel.streams.dashboard.poller import GroupPoller, PolledGroup, PollResult
from tidewheel.streams.dashboard.web import build_app, event
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.web.connection import STREAMS_MAX

PAGE = files("tidewheel.streams.dashboard") / "page"
PATHS = ("/", "/page.css", "/page.js", "/api/status", "/api/events", "/healthz", "/metrics")
TOKEN = "0123456789abcdef"  # noqa: S105 - of these tests


@contextmanager
def _served(
    fetch_status: Callable[[], PolledGroup] = polled_group,
    *,
    names: tuple[str, ...] = (),
    token: str | None = None,
) -> Generator[TestClient]:
    """Serve a group that is polled once or twice; then streams end."""
    calls = iter(range(1_000))

    def once() -> PolledGroup:
        if next(calls):
            poller.end()
        return fetch_status()

    poller = GroupPoller(once, 0.001, patience_s=600)
    app = build_app("shop", poller, names=names, token=token)
    with TestClient(app, base_url="http://localhost:8080") as client:
        shown = {} if token is None else {"authorization": f"Bearer {token}"}
        assert client.get("/api/events", headers=shown).is_success
        yield client


def _events(text: str) -> list[dict[str, Any]]:
    """Return the data of a stream's unnamed events, as a browser would."""
    blocks = [re.split(r"\r\n|\r|\n", block) for block in text.split("\n\n") if block]
    assert blocks[-1][0] == "event: end"
    assert all(len(block) == 1 and block[0].startswith("data: ") for block in blocks[:-1])
    return [json.loads(block[0].removeprefix("data: ")) for block in blocks[:-1]]


def test_the_status_path_returns_the_json_of_the_status_command() -> None:
    with _served() as client:
        answer = client.get("/api/status")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(polled_group().status.to_dict()))


def test_viewers_receive_each_poll_as_an_event() -> None:
    with _served() as client:
        told = next(told for told in _events(client.get("/api/events").text) if "status" in told)
    assert told["status"]["learners"][0]["done"] == 750
    assert "target 2: c joined" in told["history"][-1]["text"]
    assert [part["reads"] for part in told["graph"]["parts"]] == [[]]
    assert told["graph"]["topology_hash"] == ""
    assert (told["problem"], told["interval_s"]) == ("", 0.001)
    assert told["age_s"] >= 0


def test_figures_older_than_the_session_timeout_are_stale() -> None:
    with _served(lambda: polled_group(3_001)) as client:
        status = client.get("/api/status").json()
        samples = _samples(client.get("/metrics").text)
    assert {each["stale"] for each in (*status["members"], *status["tasks"])} == {True}
    assert samples["tidewheel_group_stale_members", ()] == 3
    assert not [key for key in samples if key[0].startswith("tidewheel_group_task_")]


def test_a_group_that_cannot_be_read_is_not_shown_with_old_figures() -> None:
    def fetch() -> PolledGroup:
        raise StreamsError("list topics: nobody there")

    with _served(fetch) as client:
        status, health = client.get("/api/status"), client.get("/healthz")
        told = _events(client.get("/api/events").text)[-1]
        samples = _samples(client.get("/metrics").text)
    assert (status.status_code, status.json()) == (503, {"problem": "list topics: nobody there"})
    assert (health.status_code, health.json()) == (503, {"ok": False})
    assert (told["problem"], "status" in told) == ("list topics: nobody there", False)
    assert samples == {("tidewheel_group_readable", ()): 0}


def _samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (
            sample.name,
            tuple(value for name, value in sorted(sample.labels.items()) if name != "application"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_gets_the_groups_figures() -> None:
    with _served() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = _samples(answer.text)
    expected = {
        ("readable", ()): 1,
        ("phase", ("RECONCILING",)): 1,
        ("phase", ("RUNNING",)): 0,
        ("members", ("ACTIVE",)): 3,
        ("tasks", ("RUNNING",)): 3,
        ("tasks", ("WARMING",)): 1,
        ("copies", ("FOLLOWING", "learner")): 1,
        ("task_lag_records", ("a", "active", "0_0")): 40,
        ("task_lag_records", ("c", "learner", "0_1")): 250,
        ("task_records_per_second", ("a", "active", "0_0")): 2_000,
        ("task_oldest_record_in_hand_seconds", ("a", "active", "0_0")): 65,
        ("member_longest_call_seconds", ("a",)): 0,
        ("member_longest_call_seconds", ("b",)): 151,
        ("alarms", ("long-call",)): 1,
    }
    assert {key: samples[f"tidewheel_group_{key[0]}", key[1]] for key in expected} == expected


def test_names_that_members_chose_stay_text() -> None:
    with _served(lambda: polled_group(name=EVIL)) as client:
        told = _events(client.get("/api/events").text)
        samples = _samples(client.get("/metrics").text)
    assert {each["look"] for each in told} <= {1, 2}
    assert EVIL in [each["member"] for each in told[-1]["status"]["members"]]
    assert samples["tidewheel_group_task_lag_records", (EVIL, "learner", "0_1")] == 250


def test_the_page_makes_no_markup_and_loads_no_external_files() -> None:
    markup, style = ((PAGE / name).read_text() for name in ("index.html", "page.css"))
    script = "".join(file.read_text() for file in PAGE.iterdir() if file.name.endswith(".js"))
    assert not re.search(r"<script(?! src=)|<style|\son\w+=|\sstyle=", markup)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script
    )
    addresses = re.findall(r"\w+://[^\"'\s)]+", markup + style + script)
    assert addresses == ["http://www.w3.org/2000/svg"]
    used = set(re.findall(r"\$\(\"([\w-]+)\"\)", script))
    assert used <= set(re.findall(r'id="([\w-]+)"', markup))


def test_the_events_of_forged_names_stay_one_line() -> None:
    for attack in ATTACKS:
        data = event(PollResult(number=1, at_s=0.0, polled=forged_group(attack)), 1.0, 0.0)
        assert data.count(b"\n") == 2, attack
        assert json.loads(data.removeprefix(b"data: "))["status"]["application_id"] == attack


def test_what_a_viewer_has_already_is_not_sent_again() -> None:
    polled = polled_group()
    poll = PollResult(number=1, at_s=0.0, polled=polled)
    first, again = (
        json.loads(event(poll, 1.0, 0.0, sent).removeprefix(b"data: ")) for sent in (None, polled)
    )
    assert first.keys() - again.keys() == {"history", "graph"}
    later = replace(poll, polled=replace(polled, history=polled.history[:1]))
    assert "history" in json.loads(event(later, 1.0, 0.0, polled).removeprefix(b"data: "))


def test_the_headers_of_every_response_restrict_browsers() -> None:
    with _served(token=TOKEN) as client:
        answers = [client.get(path) for path in (*PATHS, "/nothing-here")]
        answers += [client.post("/"), client.get("/", headers={"host": "evil.example"})]
    assert [each.status_code for each in answers] == [
        200,
        200,
        200,
        401,
        401,
        200,
        401,
        401,
        405,
        421,
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "set-cookie" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("192.0.2.7:8080", True),
        ("shop.example:443", True),
        ("shop.example.", True),
        ("evil.example", False),
        ("localhost.evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:8080@evil.example", False),
        ("shop.example:8080:evil", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_only_requests_with_known_host_names_are_answered(host: str, *, is_known: bool) -> None:
    with _served(names=("Shop.Example",)) as client:
        codes = {client.get(path, headers={"host": host}).status_code for path in PATHS}
    assert codes == ({200} if is_known else {421})


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        TOKEN,
        "Bearer",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        "Bearer \u00e9\u00ff",
    ],
)
def test_no_group_data_are_sent_without_the_token(shown: str | None) -> None:
    headers = {} if shown is None else {b"authorization": shown.encode("latin-1")}
    with _served(token=TOKEN) as client:
        told = {path: client.get(path, headers=headers) for path in (*PATHS, "/api/else")}
        wrong = client.get("/api/status", params={"token": TOKEN}, headers=headers)
    refused = [path for path, answer in told.items() if answer.status_code == 401]
    assert refused == ["/api/status", "/api/events", "/metrics", "/api/else"]
    assert told["/healthz"].json() == {"ok": True}
    assert wrong.status_code == 401  # never in an address, which logs and histories keep
    assert not [path for path, answer in told.items() if "shop" in answer.text]


def test_the_token_allows_every_path() -> None:
    with _served(token=TOKEN) as client:
        headers = {"authorization": f"bearer {TOKEN}"}
        codes = {client.get(path, headers=headers).status_code for path in PATHS}
    assert codes == {200}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_dashboard_accepts_no_changes(method: str) -> None:
    with _served() as client:
        codes = {client.request(method, path, content=b"x" * 100_000).status_code for path in PATHS}
    assert codes == {405}


def test_requests_from_another_site_are_refused() -> None:
    with _served() as client:

        def code(path: str, site: str, mode: str) -> int:
            headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
            return client.get(path, headers=headers).status_code

        assert code("/api/events", "cross-site", "no-cors") == 403
        assert code("/api/status", "same-site", "cors") == 403  # another port of this machine
        assert code("/", "cross-site", "navigate") == 200
        assert code("/api/status", "same-origin", "cors") == 200
        assert code("/", "none", "navigate") == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/page.css/",
        "/page/page.js",
        "/..%2fweb.py",
        "/%2e%2e/guard.py",
        "//etc/passwd",
        "/api",
    ],
)
def test_no_path_reaches_a_file(path: str) -> None:
    with _served() as client:
        assert client.get(path, follow_redirects=False).status_code == 404


def test_the_number_of_followers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    with _served() as client:
        monkeypatch.setattr("tidewheel.streams.dashboard.web.STREAMS_MAX", 0)
        answer = client.get("/api/events")
        head = client.head("/api/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("leave", ["disconnect", "fail"])
def test_simultaneous_viewers_are_limited_and_give_their_places_back(leave: str) -> None:
    async def follow() -> list[Counter[int]]:
        app = build_app("shop", GroupPoller(polled_group, 60.0))
        return [await _simultaneous(app, 90, leave) for _ in range(2)]

    expected = Counter({200: STREAMS_MAX, 503: 90 - STREAMS_MAX})
    assert asyncio.run(follow()) == [expected, expected]


async def _simultaneous(app: Starlette, count: int, leave: str) -> Counter[int]:
    """Return the status codes of requests that all wait for events at the same time."""
    codes: list[int] = []
    answered, over = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, str]:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] != "http.response.start":
            return
        codes.append(message["status"])
        if len(codes) == count:
            answered.set()
        if leave == "fail" and message["status"] == 200:
            await over.wait()
            raise OSError("the client has gone")

    scope = {
        "type": "http", "method": "GET", "path": "/api/events", "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    viewers = [asyncio.create_task(app(dict(scope), receive, send)) for _ in range(count)]
    await asyncio.wait_for(answered.wait(), 60)
    over.set()
    await asyncio.gather(*viewers, return_exceptions=True)
    return Counter(codes)
