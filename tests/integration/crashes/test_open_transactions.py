"""A foreign open transaction in a changelog: restores wait and report it, state stays complete."""

import secrets
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp, StartWorker
from tests.integration.processes import WorkerProcess, owned
from tests.integration.programs.jobs import STORE
from tidewheel import KafkaStreamsState, Serdes, StreamsBuilder
from tidewheel.rebalance.model import TopicPartition

_KEYS = 10
_PARTITIONS = 2


class ForeignTransaction:
    def __init__(self, cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
        self.transactional_id = f"foreign-{secrets.token_hex(4)}"
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": 600_000,
            }
        )
        self._producer.init_transactions(PATIENCE_S)
        self._producer.begin_transaction()
        self._open = True
        for topic, partition in partitions:
            self._producer.produce(topic, value=b"\0" * 8, key=b"foreign", partition=partition)
        assert self._producer.flush(PATIENCE_S) == 0, "its records are in the log"

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._producer.abort_transaction(PATIENCE_S)


class Counting:
    def __init__(self, cluster: Cluster, config: dict[str, Any], unique: str) -> None:
        self.cluster, self.config = cluster, config
        self.job = "count_by_key"
        self.source, self.sink = f"in-{unique}", f"out-{unique}"
        cluster.create({self.source: _PARTITIONS, self.sink: _PARTITIONS})
        self.changelog = f"{config['application_id']}-{STORE}-changelog"
        self.repartition = f"{config['application_id']}-{STORE}-repartition"
        self._sent: list[bytes] = []
        self._foreign: list[ForeignTransaction] = []

    def send(self, count: int = 100) -> None:
        keys = [b"key-%d" % (number % _KEYS) for number in range(count)]
        # Each key is also its own value: `word_count` counts words.
        self.cluster.send(
            self.source, [(key, key) for key in keys], first_timestamp=1_000 + len(self._sent)
        )
        self._sent += keys

    @property
    def inputs(self) -> list[str]:
        return [self.source, *([self.repartition] if self.job == "word_count" else [])]

    def wait(self) -> None:
        self.cluster.wait_until_consumed(self.config["application_id"], *self.inputs)

    def disturb(self, topic: str = "") -> ForeignTransaction:
        """Begin a foreign transaction in a topic, by default the changelog."""
        partitions = self.cluster.partitions(topic or self.changelog)
        foreign = ForeignTransaction(self.cluster, partitions)
        self._foreign.append(foreign)
        return foreign

    def is_owned(self, *workers: WorkerProcess) -> bool:
        """Return True if each of these workers owns a task, and all tasks are owned by one."""
        owned = [
            [name for name, owns in worker.numbers().items() if name.startswith("owns:") and owns]
            for worker in workers
        ]
        partitions = Counter(name for each in owned for name in each)
        return all(owned) and partitions == Counter(
            f"owns:{topic}-{number}" for topic in self.inputs for number in range(_PARTITIONS)
        )

    def check(self) -> None:
        assert self.cluster.values_by_key(self.sink) == {
            key: [struct.pack(">q", number) for number in range(1, count + 1)]
            for key, count in Counter(self._sent).items()
        }

    def close(self) -> None:
        for foreign in self._foreign:
            foreign.abort()


@pytest.fixture
def counting(cluster: Cluster, config: dict[str, Any], unique: str) -> Iterator[Counting]:
    made = Counting(cluster, config, unique)
    yield made
    made.close()


def _names(foreign: ForeignTransaction, counting: Counting, worker: WorkerProcess) -> bool:
    log = worker.log
    return foreign.transactional_id in log and f"abort --topic {counting.changelog}" in log


@pytest.mark.fault("47")
@pytest.mark.fault("54")
@pytest.mark.fault("29")
@pytest.mark.parametrize("disk", ["kept", "lost", "flushed"])
def test_F1_a_restore_waits_for_a_foreign_transaction_and_loses_nothing(
    counting: Counting, start_worker: StartWorker, disk: str
) -> None:
    first = start_worker("first")
    first.go("count_by_key", counting.source, counting.sink, counting.config)
    counting.send()
    counting.wait()
    foreign = counting.disturb()
    counting.send()
    counting.wait()
    if disk == "flushed":
        assert first.stop() == 0, first.log[-4000:]
    else:
        first.kill()
    if disk == "lost":
        shutil.rmtree(counting.config["state_dir"])
    counting.send()

    second = start_worker("second")
    second.go("count_by_key", counting.source, counting.sink, counting.config)
    until(
        lambda: second.has_ended or second.is_running or _names(foreign, counting, second),
        "the worker names the transaction that it waits for",
    )
    assert not second.has_ended, second.log[-4000:]
    assert not second.is_running, "what it would count with is not restored"
    if disk == "flushed":
        # Its position is beyond the last stable offset, but not beyond the log.
        numbers = second.numbers()
        assert all(numbers[f"restore-from:{counting.changelog}-{at}"] for at in range(_PARTITIONS))
    foreign.abort()
    second.wait_until_running()
    counting.wait()

    counting.check()
    assert second.stop() == 0, second.log[-4000:]


@pytest.mark.fault("47")
def test_F1_a_standby_becomes_owner_behind_a_foreign_transaction_without_loss(
    counting: Counting, start_worker: StartWorker
) -> None:
    config = counting.config | {
        "processing_guarantee": "at_least_once",
        "num_standby_replicas": 1,
        "settling_ms": 0,
    }
    first, second = workers = [start_worker(name) for name in ("first", "second")]
    for worker in workers:
        worker.go("count_by_key", counting.source, counting.sink, config, fixed=False)
    counting.send()
    until(lambda: all(len(owned(worker)) == 1 for worker in workers), "each worker has a task")
    counting.wait()
    foreign = counting.disturb()
    counting.send()
    counting.wait()
    first.kill()
    counting.send()

    until(
        lambda: second.has_ended or len(owned(second)) > 1 or _names(foreign, counting, second),
        "the worker names the transaction that it waits for",
    )
    assert not second.has_ended, second.log[-4000:]
    assert len(owned(second)) <= 1, "what the other task would count with is not restored"
    foreign.abort()
    counting.wait()

    counting.check()
    assert second.stop() == 0, second.log[-4000:]


def _until_settled(counting: Counting, foreign: ForeignTransaction, *living: WorkerProcess) -> None:
    """Wait until the tasks run, or a worker names the transaction in their changelog."""
    until(
        lambda: (
            any(each.has_ended for each in living)
            or counting.is_owned(*living)
            or any(_names(foreign, counting, each) for each in living)
        ),
        "the tasks run, or a worker names the transaction",
    )
    assert not any(each.has_ended for each in living), living[-1].log[-4000:]


@pytest.mark.fault("47")
@pytest.mark.parametrize("place", ["changelog", "repartition", "input"])
def test_tasks_restart_restore_and_move_while_a_transaction_is_open(
    counting: Counting, start_worker: StartWorker, tmp_path: Path, place: str
) -> None:
    """A worker restarts, another one loses its disk, a third one joins; the transaction stays open.

    A transaction in a changelog keeps tasks from starting after a kill: the changelog's end is
    unknown. One in an input keeps only the input's records.
    """
    counting.job = "word_count"
    workers: list[WorkerProcess] = []

    def start(state: str) -> WorkerProcess:
        worker = start_worker(f"worker-{len(workers)}")
        config = counting.config | {"settling_ms": 0, "state_dir": str(tmp_path / state)}
        worker.go(counting.job, counting.source, counting.sink, config, fixed=False)
        workers.append(worker)
        return worker

    first = start("one")
    first.wait_until_running()
    counting.send()
    counting.wait()
    counted = counting.cluster.values_by_key(counting.sink)
    topics = {"changelog": counting.changelog, "repartition": counting.repartition}
    foreign = counting.disturb(topics.get(place, counting.source))
    assert first.stop() == 0, first.log[-4000:]
    counting.send()

    restarted = start("one")
    _until_settled(counting, foreign, restarted)
    restarted.kill()
    shutil.rmtree(tmp_path / "one")
    counting.send()
    restored = start("one")
    _until_settled(counting, foreign, restored)
    joined = start("two")
    until(lambda: joined.has_ended or " incarnation " in joined.log, "it joins")
    _until_settled(counting, foreign, restored, joined)
    if place == "changelog":
        assert _names(foreign, counting, restored)
        assert not counting.is_owned(restored, joined)
    else:
        assert counting.cluster.values_by_key(counting.sink) == counted, "its records wait"
    foreign.abort()

    until(lambda: counting.is_owned(restored, joined), "both work")
    counting.wait()
    counting.check()
    assert [each.stop() for each in (joined, restored)] == [0, 0], restored.log[-4000:]
    assert not any("wiping" in each.log for each in workers)


@pytest.mark.fault("47")
def test_F1_global_stores_wait_for_open_transactions(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    source, table, output = f"in-{unique}", f"table-{unique}", f"out-{unique}"
    cluster.create({source: 1, output: 1})
    cluster.create({table: 1}, cleanup_policy="compact")
    cluster.send(table, [(b"a", b"old")])
    foreign = ForeignTransaction(cluster, [TopicPartition(table, 0)])
    cluster.send(table, [(b"a", b"new")])
    cluster.send(source, [(b"x", b"a")])
    builder = StreamsBuilder()
    text = Serdes.string()
    rows = builder.global_table(table, key_serde=text, value_serde=text)
    builder.stream(source, key_serde=text, value_serde=text).left_join(
        rows, lambda left, right: f"{left}+{right}", key_selector=lambda value: value
    ).to(output, value_serde=text)

    app = start_app(builder, config, wait=False)
    thread = app._threads[0]
    until(
        lambda: (
            app.state is KafkaStreamsState.RUNNING
            or (
                thread.life is not None
                and thread.life.globals is not None
                and thread.life.globals.metrics()["restore-remaining-records-total"] == 2
            )
        ),
        "all that is decided is restored",
    )
    assert app.state is not KafkaStreamsState.RUNNING
    foreign.abort()
    assert app.wait_until_running(PATIENCE_S)

    cluster.wait_until_consumed(config["application_id"], source)
    assert [record.value for record in cluster.read(output)] == [b"a+new"]
