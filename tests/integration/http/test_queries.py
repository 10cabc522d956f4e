"""Interactive queries over HTTP: every kind of store, and the owners of other members' tasks."""

import json
import secrets
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tidewheel import (
    InvalidStateStoreError,
    KafkaStreams,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
)
from tidewheel.web import QueryClient

USERS: Final = [f"user-{number}" for number in range(20)]
PARTITIONS: Final = 4
TOKEN: Final = "0123456789abcdef"  # noqa: S105 - of these tests

pytestmark = pytest.mark.timeout(600)


def topology(topic: str, names: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    clicks = builder.stream(topic, key_serde=str, value_serde=str)
    by_user = clicks.group_by_key()
    by_user.count(store="counts")
    by_user.windowed_by(TimeWindows(1_000, grace=100_000)).count(store="windows")
    by_user.windowed_by(SessionWindows(100, grace=100_000)).count(store="sessions")
    clicks.to_table(
        store=Materialized("versions", store_type="versioned", history_retention=1_000_000)
    )
    builder.global_table(names, key_serde=str, value_serde=str, store="names")
    return builder


class Group:
    """Two members, both with an HTTP server."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self._cluster = cluster
        self.topic, self.names = f"clicks-{name}", f"names-{name}"
        cluster.create({self.topic: PARTITIONS, self.names: 1})
        cluster.send(self.names, [(b"user-0", b"Ann")])
        self.config = StreamsConfig(
            application_id=f"http-{name}",
            bootstrap_servers=cluster.bootstrap_servers,
            state_dir=folder,
            commit_interval_ms=50,
            statestore_cache_max_bytes=0,
            http_port=0,
            http_token=TOKEN,
            num_standby_replicas=1,
            consumer={"statistics.interval.ms": 500},
            producer={"statistics.interval.ms": 500},
        )
        self.apps = [
            KafkaStreams(topology(self.topic, self.names).build(self.config), self.config)
            for _ in range(2)
        ]

    def fill(self) -> None:
        for app in self.apps:
            app.start()
        until(self._is_balanced, "both members have tasks and standbys")
        for number in range(3):
            self._cluster.send(
                self.topic,
                [(user.encode(), str(number).encode()) for user in USERS],
                first_timestamp=300 + number * 400,
            )
        application_id = self.config.application_id
        until(
            lambda: self._cluster.is_consumed(application_id, self.topic), "the input is consumed"
        )

    def _is_balanced(self) -> bool:
        roles = [
            [task.role for task in app.tasks() if task.state in ("RUNNING", "READY")]
            for app in self.apps
        ]
        return all(sorted(each) == ["active"] * 2 + ["standby"] * 2 for each in roles)

    @property
    def clients(self) -> list[QueryClient]:
        return [QueryClient(str(app.http_url), token=TOKEN) for app in self.apps]


def fetch(app: KafkaStreams, path: str, **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection(str(app.http_url).removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("GET", path, headers={"authorization": f"Bearer {TOKEN}", **headers})
    response = connection.getresponse()
    status, body = response.status, response.read()
    connection.close()
    return status, body


def _group(cluster: Cluster, folder: Path) -> Iterator[Group]:
    group = Group(cluster, folder, secrets.token_hex(4))
    try:
        group.fill()
        yield group
    finally:
        for app in group.apps:
            assert app.close(timeout=int(PATIENCE_S * 1000))


@pytest.fixture(scope="module")
def group(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Return a group that tests only read and write to."""
    yield from _group(cluster, tmp_path_factory.mktemp("group"))


@pytest.fixture
def own_group(cluster: Cluster, tmp_path: Path) -> Iterator[Group]:
    yield from _group(cluster, tmp_path)


def test_each_member_answers_for_all_keys_and_kinds_of_stores(group: Group) -> None:
    for client in group.clients:
        counts = {user: client.get("counts", user) for user in USERS}
        assert {row.value for row in counts.values() if row is not None} == {3}
        assert {row.partition for row in counts.values() if row is not None} == {0, 1, 2, 3}
        assert client.get("counts", "nobody") is None
        assert len(client.range("counts")) == len(USERS)
        assert {row.key for row in client.range("counts", "user-1", "user-12")} == {
            "user-1", "user-10", "user-11", "user-12",
        }  # fmt: skip
        assert {row.key for row in client.prefix("counts", "user-1")} == {
            "user-1", *(f"user-1{digit}" for digit in range(10)),
        }  # fmt: skip
        _check_times(client)
        named = client.get("names", "user-0")
        assert named is not None
        assert (named.value, named.partition) == ("Ann", None)
        assert {place.role for place in client.range("counts").partitions.values()} == {"active"}
    servers = {place.server for place in group.clients[0].range("counts").partitions.values()}
    assert servers == {str(app.http_url).removeprefix("http://") for app in group.apps}


def _check_times(client: QueryClient) -> None:
    # user-3's clicks are at 303, 703 and 1,103.
    windows = client.windows("windows", "user-3")
    assert [(row.start, row.end, row.value) for row in windows] == [
        (0, 1_000, 2),
        (1_000, 2_000, 1),
    ]
    assert [row.start for row in client.windows("windows", "user-3", reverse=True)] == [1_000, 0]
    assert [row.start for row in client.windows("windows", "user-3", 500)] == [1_000]
    window = client.get("windows", "user-3", start=0)
    assert window is not None
    assert (window.value, window.end) == (2, 1_000)
    assert client.get("windows", "user-3", start=5_000) is None
    sessions = client.sessions("sessions", "user-3")
    assert [(row.start, row.end) for row in sessions] == [(303, 303), (703, 703), (1_103, 1_103)]
    session = client.get("sessions", "user-3", start=703, end=703)
    assert session is not None
    assert session.value == 1
    versions = client.versions("versions", "user-3")
    assert [(row.value, row.timestamp, row.valid_to) for row in versions] == [
        ("2", 1_103, None), ("1", 703, 1_103), ("0", 303, 703),
    ]  # fmt: skip
    then = client.get("versions", "user-3", as_of=800)
    assert then is not None
    assert then.value == "1"


def test_answers_keep_their_limits_and_positions(group: Group, cluster: Cluster) -> None:
    client = group.clients[0]
    limited = client.range("counts", limit=7)
    assert (len(limited), limited.truncated) == (7, "rows")
    assert client.range("counts").truncated is None
    one = client.range("counts", partitions=[2])
    assert {row.partition for row in one} == {2}
    assert set(one.partitions) == {"2"}
    ends = {f"{at.topic}-{at.partition}": end for at, end in cluster.ends(group.topic).items()}
    cluster.send(group.topic, [(b"user-7", b"9")])
    newer = {f"{at.topic}-{at.partition}": end for at, end in cluster.ends(group.topic).items()}
    assert newer != ends
    row = client.get("counts", "user-7", min_position=newer)
    assert row is not None
    assert row.value == 4
    (place,) = client.query("counts", "get", keys={"key": "user-7"}).partitions.values()
    assert place.position is not None
    assert place.position.items() <= newer.items()
    far = {name: end + 100 for name, end in newer.items()}
    for app in group.apps:  # the owner, and a member that asks it
        impatient = QueryClient(str(app.http_url), token=TOKEN, timeout_s=0.3)
        with pytest.raises(InvalidStateStoreError, match="does not include min_position"):
            impatient.get("counts", "user-7", min_position=far)
    with pytest.raises(ValueError, match=f"give offsets of {group.topic}"):
        client.get("counts", "user-7", min_position={"nope-0": 1})


def test_wrong_queries_are_refused_with_a_reason(group: Group) -> None:
    app = group.apps[0]
    for path, status in [
        ("/stores/nothing/get?key=a", 404),
        ("/stores/counts/get", 400),
        ("/stores/counts/get?key=a&kye=b", 400),
        ("/stores/counts/windows?key=a", 400),
        ("/stores/counts/get?key=a&key=b", 400),
        ("/stores/counts/range?limit=0", 400),
        ("/stores/counts/range?partitions=9", 400),
        (f"/stores/counts/range?min_position={group.topic}-{PARTITIONS}:1", 400),
        (f"/stores/names/get?key=user-0&min_position={group.names}-0:1", 400),
        ("/stores/counts/range?isolation_level=none", 400),
        ("/stores/windows/windows?key=a&from=yesterday", 400),
        ("/stores/windows/get?key=a", 400),
    ]:
        answered, body = fetch(app, path)
        assert (answered, bool(json.loads(body)["error"])) == (status, True), (path, body)
    assert fetch(app, "/stores/counts/get?key=a", authorization="Bearer wrong")[0] == 401
    with pytest.raises(InvalidStateStoreError):
        QueryClient(str(app.http_url), token=TOKEN).get("nothing", "a")


def test_a_copy_answers_while_the_owner_is_gone(own_group: Group) -> None:
    lasting, leaving = own_group.apps
    client = own_group.clients[0]
    server = str(leaving.http_url).removeprefix("http://")
    places = client.range("counts").partitions.values()
    assert server in {place.server for place in places}
    assert leaving._http_server is not None
    leaving._http_server.close()
    with pytest.raises(InvalidStateStoreError):
        client.range("counts")
    answer = client.range("counts", stale=True)
    assert {row.value for row in answer} == {3}
    assert len(answer) == len(USERS)
    assert {place.role for place in answer.partitions.values()} == {"active", "standby"}
    assert {place.server for place in answer.partitions.values()} == {
        str(lasting.http_url).removeprefix("http://")
    }
    assert leaving.close(timeout=int(PATIENCE_S * 1000))
    until(lambda: _answers(lambda: client.range("counts")), "the other member has all tasks")


def _answers(query: Callable[[], object]) -> bool:
    try:
        query()
    except InvalidStateStoreError:
        return False
    return True


def test_metrics_have_the_figures_of_tasks_stores_and_commits(group: Group) -> None:
    processed, slots = 0.0, set[str]()
    keys = {"active": 0.0, "standby": 0.0}
    for app in group.apps:
        status, body = fetch(app, "/metrics")
        assert status == 200
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                assert sample.labels["application"] == app.view.config.application_id
                slots |= {sample.labels["slot"]} if "slot" in sample.labels else set()
                if sample.name == "tidewheel_task_process_total":
                    processed += sample.value
                if sample.name == "tidewheel_store_estimate_num_keys":
                    is_counts = sample.labels["store"] == "counts"
                    keys[sample.labels["role"]] += sample.value if is_counts else 0
                if sample.name == "tidewheel_thread_record_send_total":
                    assert (sample.value > 0) is (sample.labels["kind"] == "changelog")
                if sample.name == "tidewheel_thread_commit_latency_seconds_count":
                    assert sample.value > 0
        assert fetch(app, "/readyz")[0] == 200
        assert json.loads(fetch(app, "/state")[1])["state"] == "RUNNING"
    assert processed >= 3 * len(USERS)
    assert min(keys.values()) >= len(USERS)
    assert slots == {"0", "1"}


def test_metrics_have_the_figures_of_nodes_and_of_kafkas_clients(group: Group) -> None:
    users = len(USERS)

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for app in group.apps
            for family in text_string_to_metric_families(fetch(app, "/metrics")[1].decode())
            for sample in family.samples
            if sample.name == f"tidewheel_{name}" and labels.items() <= sample.labels.items()
        )

    until(
        lambda: total("consumer_records_consumed_total", client="consumer") > 3 * users,
        "the consumers have reported their records",
    )
    until(
        lambda: total("producer_record_send_total", client="producer") >= users,
        "the producers have reported changelog records",
    )
    assert total("consumer_connection_count") > 0
    assert total("consumer_incoming_byte_total") > total("consumer_bytes_consumed_total") > 0
    assert total("producer_buffer_available_bytes") > 0
    assert total("consumer_records_lag", topic=group.topic) >= 0
    assert total("client_statistics_errors_total") == 0
    assert total("node_process_total", node="KSTREAM-SOURCE-0000000000") >= 3 * users
    assert total("node_record_e2e_latency_max_seconds") > 0
