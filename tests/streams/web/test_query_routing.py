"""Members that a query may ask, and what they may answer."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import LogBook
from tests.streams.web.processes import streams
from tidewheel.rebalance.model import TaskId, TaskPhase
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.streams.errors import InvalidStateStoreError, QueryTimeoutError, StreamsError
from tidewheel.streams.serdes.partitioning import crc32_partition, partition_of
from tidewheel.streams.web.local_queries import QueriedStore
from tidewheel.streams.web.query_request import Limits, parse_request
from tidewheel.streams.web.query_routing import Caller, QueryRouter
from tidewheel.streams.web.query_text import BadQueryError
from tidewheel.streams.worker.process_view import ProcessView
from tidewheel.tasks.kafka.internal_topics import SubtopologyPlan
from tidewheel.tasks.key_ranges.key_ranges import key_hash
from tidewheel.tasks.loop.metrics import WorkerMetrics

ROW = {"key": "a", "value": 1, "partition": 0}
PLACE = {"role": "active", "lag": 0, "position": {"in-0": 4}, "server": "x:1"}
FINE = {"store": "rows", "rows": [ROW], "partitions": {"0": PLACE}, "truncated": None}

Reply = tuple[int, dict[str, str], bytes]


class Peer:
    """Another member's HTTP server, with one answer for all requests."""

    def __init__(self) -> None:
        self.reply: Callable[[str], Reply] = lambda _: (200, {}, json.dumps(FINE).encode())
        self.asked: list[tuple[str, str | None]] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.asked.append((self.path, self.headers.get("authorization")))
                status, headers, body = peer.reply(self.path)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def _plan(partitions: int = 1, shards: int = 1, **fields: Any) -> SubtopologyPlan:
    spec: Any = SimpleNamespace(id=0)
    fields = {"source_topics": {}, "topic_partitions": {"in": partitions}} | fields
    return SubtopologyPlan(spec=spec, partitions=partitions, shards=shards, **fields)


def _view(tmp_path: Path, **members: str | None) -> ProcessView:
    """Return a process without tasks; the first of the members owns task 0_0, others have copies."""
    book = LogBook().leader("p1").about("0_0", partitions={"in": 1})
    for name, endpoint in members.items():
        book.member(name, endpoint=endpoint)
    owner, *others = members
    book.step(standbys={"0_0": (f"{others[0]}-1", 1)} if others else {})
    book.grant("0_0", owner)
    _rename_hosts(book)
    plan = SimpleNamespace(
        subtopologies={
            0: _plan(topic_partitions={"in": 1}),
            1: _plan(topic_partitions={"upstream": 1}),
        }
    )
    worker = SimpleNamespace(tasks={}, copies={}, plan=plan, metrics=WorkerMetrics())
    thread: Any = SimpleNamespace(worker=worker)
    return msgspec.structs.replace(
        streams(tmp_path).view, threads=lambda: [thread], group=lambda: book.group
    )


def _rename_hosts(book: LogBook, host: str = socket.gethostname()) -> None:
    for entry in [entry for entry in book.entries if isinstance(entry.record, MemberRecord)]:
        assert isinstance(entry.record, MemberRecord)
        book.write(msgspec.structs.replace(entry.record, host=host))


def _ask(view: ProcessView, caller: Caller | None = None, **parameters: str) -> list[Any]:
    request = parse_request("rows", "get", {"key": "a", **parameters}, Limits(), 20_000)
    router = QueryRouter(view)
    try:
        answer = router.answer(request, caller or Caller())
    finally:
        router.close()
    return [json.loads(row) for row in answer.rows]


def test_the_owner_is_asked_for_its_partition_and_for_no_further_member(
    tmp_path: Path, peer: Peer
) -> None:
    caller = Caller(prefix="/kafka", parameters={"key": "a"}, authorization="Bearer t")
    assert _ask(_view(tmp_path, a=peer.endpoint), caller) == [ROW]
    ((path, authorization),) = peer.asked
    assert path.startswith("/kafka/stores/rows/get?key=a&local=true&partitions=0&")
    assert authorization == "Bearer t"


def test_a_redirect_is_not_followed(tmp_path: Path, peer: Peer) -> None:
    peer.reply = lambda _: (302, {"location": f"http://{peer.endpoint}/other"}, b"")
    with pytest.raises(InvalidStateStoreError, match="302"):
        _ask(_view(tmp_path, a=peer.endpoint))
    assert len(peer.asked) == 1


def test_parameters_choose_no_address(tmp_path: Path, peer: Peer) -> None:
    view = _view(tmp_path, a=None)
    for key in (f"http://{peer.endpoint}/", f"{peer.endpoint}", f"@{peer.endpoint}"):
        with pytest.raises(InvalidStateStoreError, match="announces no address"):
            _ask(view, key=key)
    assert not peer.asked


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, b"no json", InvalidStateStoreError),
        (200, b"[]", InvalidStateStoreError),
        (200, b'{"rows": 3, "partitions": {}, "truncated": null}', InvalidStateStoreError),
        (200, b'{"rows": []}', InvalidStateStoreError),
        (200, b'{"rows": [], "partitions": {"0": 7}, "truncated": null}', InvalidStateStoreError),
        (400, b'{"error": "key"}', BadQueryError),
        (401, b"", InvalidStateStoreError),
        (500, b'{"error": 5}', InvalidStateStoreError),
        (504, b"{}", StreamsError),
    ],
)
def test_a_strange_answer_is_an_error(
    status: int, body: bytes, error: type[Exception], tmp_path: Path, peer: Peer
) -> None:
    peer.reply = lambda _: (status, {}, body)
    with pytest.raises(error):
        _ask(_view(tmp_path, a=peer.endpoint))


def test_an_endless_answer_is_not_read(tmp_path: Path, peer: Peer) -> None:
    peer.reply = lambda _: (200, {}, b" " * (Limits().size_bytes + 3_000_000))
    with pytest.raises(InvalidStateStoreError, match="did not answer"):
        _ask(_view(tmp_path, a=peer.endpoint))


def test_a_loopback_address_of_another_host_is_not_asked(tmp_path: Path, peer: Peer) -> None:
    view = _view(tmp_path, a=peer.endpoint)
    book = LogBook().leader("p1").about("0_0", partitions={"in": 1})
    book.member("a", endpoint=peer.endpoint).step(standbys={}).grant("0_0", "a")
    elsewhere = msgspec.structs.replace(view, group=lambda: book.group)
    with pytest.raises(InvalidStateStoreError, match="h-a"):
        _ask(elsewhere)
    assert not peer.asked


def test_a_copy_is_asked_if_the_owner_does_not_answer_and_the_query_allows_it(
    tmp_path: Path, peer: Peer
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    view = _view(tmp_path, a=gone, b=peer.endpoint)
    with pytest.raises(InvalidStateStoreError):
        _ask(view)
    assert not peer.asked
    assert _ask(view, stale="true") == [ROW]


def test_a_hop_asks_no_other_member(tmp_path: Path, peer: Peer) -> None:
    with pytest.raises(InvalidStateStoreError):
        _ask(_view(tmp_path, a=peer.endpoint), local="true")
    assert not peer.asked


def test_the_own_address_is_not_asked(tmp_path: Path, peer: Peer) -> None:
    view = _view(tmp_path, a=peer.endpoint)
    view.application.announced.endpoint = peer.endpoint
    with pytest.raises(InvalidStateStoreError, match="this process"):
        _ask(view)
    assert not peer.asked


def test_a_member_that_does_not_answer_in_time_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        view = _view(tmp_path, a=f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(QueryTimeoutError):
            _ask(view, timeout_ms="200")


@pytest.mark.parametrize("timeout_ms", [1, 300])
def test_the_owners_reason_is_given_if_it_waits_in_vain(
    timeout_ms: int, tmp_path: Path, peer: Peer
) -> None:
    def late(path: str) -> Reply:
        asked = parse_qs(urlsplit(path).query)
        time.sleep(int(asked["timeout_ms"][0]) / 1000 + 0.05)
        return 503, {}, b'{"error": "partition 0 does not include min_position yet"}'

    peer.reply = late
    with pytest.raises(InvalidStateStoreError, match="min_position"):
        _ask(_view(tmp_path, a=peer.endpoint), timeout_ms=str(timeout_ms))


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("nope-0", r"do not read a topic nope; give offsets of in$"),
        ("upstream-0", r"upstream only by way of other topics; give offsets of in$"),
        ("in-1", "in has the partitions 0 to 0"),
    ],
)
def test_a_position_that_no_task_of_the_store_has_is_refused(
    place: str, reason: str, tmp_path: Path, peer: Peer
) -> None:
    view = _view(tmp_path, a=peer.endpoint)
    with pytest.raises(BadQueryError, match=reason):
        _ask(view, min_position=f"{place}:1")
    assert not peer.asked
    assert _ask(view, min_position="in-0:1") == [ROW]


def test_large_numbers_of_another_member_stay_exact(tmp_path: Path, peer: Peer) -> None:
    row = ROW | {"value": 1 << 70}
    peer.reply = lambda _: (200, {}, json.dumps(FINE | {"rows": [row]}).encode())
    assert _ask(_view(tmp_path, a=peer.endpoint)) == [row]


@pytest.mark.parametrize(
    ("partitioners", "partitions"),
    [
        ({}, [partition_of(b"a", 16)]),
        ({"in": "crc32"}, [crc32_partition(b"a", 16)]),
        ({"in": "unknown"}, list(range(16))),
    ],
)
def test_a_key_is_searched_where_its_input_has_it(
    partitioners: dict[str, str], partitions: list[int], tmp_path: Path
) -> None:
    store = _store(tmp_path, _plan(16), input_partitioners=partitioners)
    assert store.partitions_of("a") == partitions
    assert store.tasks_of("a") == [TaskId(0, number) for number in partitions]


def _store(tmp_path: Path, plan: SubtopologyPlan, **settings: Any) -> QueriedStore:
    worker = SimpleNamespace(plan=SimpleNamespace(subtopologies={0: plan}))
    thread: Any = SimpleNamespace(worker=worker)
    view = streams(tmp_path, **settings).view
    return QueriedStore(msgspec.structs.replace(view, threads=lambda: [thread]), "rows")


@given(key=st.text(), partitions=st.integers(1, 5), shards=st.sampled_from([1, 2, 8, 64]))
def test_a_key_is_searched_in_the_shard_that_has_its_hash(
    key: str, partitions: int, shards: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (task,) = _store(folder, _plan(partitions, shards)).tasks_of(key)
    data = key.encode()
    assert task.partition == partition_of(data, partitions)
    assert task.shard.of == shards
    assert task.shard.first_hash <= key_hash(data, 0) < task.shard.end_hash
    # A key whose partition is unknown is searched in one shard of each partition.
    store = _store(folder, _plan(partitions, shards), input_partitioners={"in": "unknown"})
    assert store.tasks_of(key) == [TaskId(0, n, task.shard) for n in range(partitions)]


#: Keys whose rows the first and the second of two shards have.
_FIRST, _SECOND = "alice", "bob"


def _sharded_view(tmp_path: Path, first: Peer, second: Peer) -> ProcessView:
    """Return a process without tasks in a group whose two members have a shard each."""
    book = LogBook().leader("p1").member("a", endpoint=first.endpoint)
    book.member("b", endpoint=second.endpoint)
    _rename_hosts(book)
    group = SimpleNamespace(
        tasks=dict.fromkeys(_plan(1, 2).tasks),
        states={
            task: SimpleNamespace(owner=f"{name}-1")
            for task, name in zip(_plan(1, 2).tasks, "ab", strict=True)
        },
        members=book.group.members,
        phase_of=lambda _: TaskPhase.RUNNING,
    )
    worker = SimpleNamespace(
        tasks={},
        copies={},
        plan=SimpleNamespace(subtopologies={0: _plan(1, 2)}),
        metrics=WorkerMetrics(),
    )
    thread: Any = SimpleNamespace(worker=worker)
    view = streams(tmp_path).view
    found: Any = lambda: group  # noqa: E731 - a group's part that the router reads
    return msgspec.structs.replace(view, threads=lambda: [thread], group=found)


def _rows_of(peer: Peer, key: str, place: str) -> dict[str, Any]:
    row = ROW | {"key": key}
    answer = FINE | {"rows": [row], "partitions": {place: PLACE}}
    peer.reply = lambda _: (200, {}, json.dumps(answer).encode())
    return row


def test_the_owner_of_a_keys_shard_is_asked_and_no_other(tmp_path: Path) -> None:
    with closing(Peer()) as first, closing(Peer()) as second:
        view = _sharded_view(tmp_path, first, second)
        for peer, key, place in ((first, _FIRST, "0/0of2"), (second, _SECOND, "0/1of2")):
            row = _rows_of(peer, key, place)
            assert _ask(view, key=key) == [row]
            ((path, _),) = peer.asked
            assert parse_qs(urlsplit(path).query)["partitions"] == [place]


def test_rows_of_all_shards_come_from_all_their_owners(tmp_path: Path) -> None:
    with closing(Peer()) as first, closing(Peer()) as second:
        view = _sharded_view(tmp_path, first, second)
        rows = [_rows_of(second, _SECOND, "0/1of2"), _rows_of(first, _FIRST, "0/0of2")]
        request = parse_request("rows", "range", {"partitions": "0"}, Limits(), 20_000)
        router = QueryRouter(view)
        answer = router.answer(request, Caller())
        router.close()
        assert sorted(map(json.loads, answer.rows), key=str) == sorted(rows, key=str)
        assert list(answer.partitions) == ["0/0of2", "0/1of2"]
        request = parse_request("rows", "range", {"partitions": "0/1of2"}, Limits(), 20_000)
        assert [json.loads(row) for row in QueryRouter(view).answer(request, Caller()).rows] == [
            rows[0]
        ]


@pytest.mark.parametrize("part", ["1", "0/0of4", "0/1of2,1"])
def test_a_part_that_the_store_lacks_is_refused(part: str, tmp_path: Path) -> None:
    with closing(Peer()) as first, closing(Peer()) as second:
        view = _sharded_view(tmp_path, first, second)
        with pytest.raises(BadQueryError, match="correct partitions="):
            _ask(view, partitions=part)
        assert [*first.asked, *second.asked] == []
