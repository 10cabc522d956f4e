"""Outputs of a backfill on a real Kafka: writers are killed, topics refuse records."""

import contextlib
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.integration.cluster import until
from tests.integration.forked import ForkedProcess
from tests.streams.bulk.backfill.outputs import Output, begin_backfill, outputs_of, runs_of
from tests.streams.bulk.backfill.writing import WritingOrder, work_at
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.storage import open_storage
from tidewheel.streams.broker import RunningBroker
from tidewheel.streams.bulk.backfill.output_writer import (
    OutputItem,
    OutputOrder,
    OutputReport,
    write_output,
    write_outputs,
)
from tidewheel.streams.bulk.batch.stage_files import TOPIC, Part, StageFile, StageWriter
from tidewheel.streams.bulk.bootstrap.spark_job import KafkaWriterPorts
from tidewheel.streams.errors import FencedError, StreamsError
from tidewheel.streams.group.group_log_writer import group_log_writer
from tidewheel.streams.group.reset import ResetScope, execute_reset, gather_facts, plan_reset
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.kafka.producers.transactional_producer import KafkaTransactionalProducer
from tidewheel.tasks.batch.blobs import Blob
from tidewheel.tasks.batch.merge import merged
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.processing.engine.output import OutputColumns

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]

_KILLS: Final = 8
_PATIENCE_S: Final = 120.0
_RECORDS: Final = 9_000
_BLOB_RECORDS: Final = 250
_OTHER: Final = b"other"


class _Sink:
    """Sink topic of an application that is being backfilled, held in its group log."""

    def __init__(self, servers: str, **config: str) -> None:
        name = secrets.token_hex(4)
        self.app = f"shop-{name}"
        self.at = TopicPartition(f"alerts-{name}", 1)
        self.settings = ClientSettings(bootstrap_servers=servers, application_id=self.app)
        self.order = OutputOrder(application_id=self.app, job="job-1", attempt="b1")
        self.admin = KafkaResetAdmin(self.settings)
        self.clients = KafkaClients(bootstrap_servers=servers, application_id=self.app)
        topic = NewTopic(
            name=self.at.topic,
            partitions=2,
            replication_factor=1,
            config={"retention.ms": "-1", **config},
        )
        self.admin.create_topics([topic])
        with contextlib.closing(group_log_writer(self.settings, self.admin)) as log:
            log.open(1)
            log.step(lambda group: begin_backfill(group, "b1"))

    def write(self, outputs: Sequence[Output]) -> OutputReport:
        with KafkaWriterPorts(self.settings) as ports:
            runs = runs_of(self.at, outputs, [700])
            return write_output(self.order, self.at, runs, ports, lambda _: None)

    @property
    def number(self) -> CommittedOffset:
        committed = self.admin.committed(f"{self.app}:backfill", [self.at], stable=True)
        return committed[self.at]

    def read(self) -> list[Output]:
        """Return the committed records of the backfill; brokers write markers after they answer."""
        end = self.admin.end_offsets([self.at])[self.at]
        until(
            lambda: self.admin.stable_offsets([self.at])[self.at] >= end,
            "all transactions to end",
            _PATIENCE_S,
        )
        outputs: list[Output] = []
        with contextlib.closing(self.clients.source()) as source:
            source.assign({self.at: 0})
            deadline_s = time.monotonic() + _PATIENCE_S
            while source.positions().get(self.at, 0) < end:
                assert time.monotonic() < deadline_s, "the topic can't be read to its end"
                for run in source.poll(10_000, 0.1):
                    headers = run.headers or [()] * len(run)
                    columns = (run.raw_keys, run.raw_values, run.timestamps, headers)
                    outputs += map(Output, *columns)
        return [output for output in outputs if output.key != _OTHER]


@pytest.fixture
def sink(kafka_broker: RunningBroker) -> Iterator[_Sink]:
    sink = _Sink(kafka_broker.bootstrap_servers)
    yield sink
    sink.admin.close()


@contextlib.contextmanager
def _another_producer(sink: _Sink) -> Iterator[list[int]]:
    """Write to the partition meanwhile, one record after the other; yield a count of them."""
    ended, sent = threading.Event(), [0]

    def run() -> None:
        with contextlib.closing(sink.clients.sink_producer()) as producer:
            while not ended.is_set():
                producer.produce(
                    OutputColumns(
                        topic=sink.at.topic,
                        partitions=sink.at.partition,
                        keys=[_OTHER],
                        values=[b"%d" % sent[0]],
                        timestamps=[1],
                    )
                )
                assert producer.flush() == []
                sent[0] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join(_PATIENCE_S)


def _stage_files(sink: _Sink, folder: Path) -> tuple[str, tuple[StageFile, ...], list[list[Blob]]]:
    """Write the outputs of two tasks, whose order times interleave."""
    url, outputs = str(folder / "work"), outputs_of(_RECORDS)
    files: list[StageFile] = []
    streams: list[list[Blob]] = []
    for task in range(2):
        of_task = outputs[task::2]
        blobs = [
            _blob(sink.at, task, first, of_task[first : first + _BLOB_RECORDS])
            for first in range(0, len(of_task), _BLOB_RECORDS)
        ]
        with StageWriter(folder / f"stage-{task}") as writer:
            for blob in blobs:
                part = Part(TOPIC, sink.at.topic, sink.at.partition)
                writer.add(part, blob.encode(), blob.orders[0])
            files.append(writer.publish(open_storage(url)))
        streams.append(blobs)
    return url, tuple(files), streams


def _blob(at: TopicPartition, task: int, first: int, outputs: Sequence[Output]) -> Blob:
    return Blob(
        topic=at.topic,
        partition=at.partition,
        task=(0, task),
        number=first // _BLOB_RECORDS,
        orders=[(first + number) // 3 for number in range(len(outputs))],
        keys=[output.key for output in outputs],
        values=[output.value for output in outputs],
        timestamps=[output.timestamp for output in outputs],
        headers=[tuple(output.headers) for output in outputs],
    )


def _canonical(streams: Sequence[Sequence[Blob]]) -> list[Output]:
    return [
        Output(*record)
        for run in merged(streams)
        for record in zip(
            run.raw_keys, run.raw_values, run.timestamps, run.headers or (), strict=True
        )
    ]


def test_writers_killed_at_random_moments_write_each_record_once(
    sink: _Sink, tmp_path: Path
) -> None:
    url, files, streams = _stage_files(sink, tmp_path)
    expected = _canonical(streams)
    draw = random.Random(20)
    item = OutputItem(at=sink.at, files=files)
    with _another_producer(sink) as others:
        for life in range(_KILLS):
            # Later lives write further; the first one is killed while it starts.
            least = draw.randrange(-1, life * _RECORDS // (_KILLS + 2)) if life else -1
            writer = _Writer(sink, url, item, tmp_path / f"life-{life}")
            writer.kill_in_transaction_after(least, draw.uniform(0, 0.02))
        report = write_outputs(work_at(url), sink.settings, sink.order, item, lambda _: None)
        assert others[0] > 0
    assert 0 < report.written < report.records == _RECORDS
    assert sink.read() == expected
    assert sink.number == CommittedOffset(_RECORDS, "job-1")


class _Writer:
    def __init__(self, sink: _Sink, url: str, item: OutputItem, path: Path) -> None:
        self._progress = path
        self._log = path.with_suffix(".log")
        order = WritingOrder(
            servers=sink.settings.bootstrap_servers,
            order=sink.order,
            url=url,
            item=item,
            progress=str(path),
        )
        with self._log.open("wb") as log:
            self._process = ForkedProcess("tests.streams.bulk.backfill.writing", log.fileno())
        with self._process.stdin as orders:
            orders.write(msgspec.json.encode(order))

    def kill_in_transaction_after(self, records: int, delay_s: float) -> None:
        def has_written() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return self._counted() >= records

        until(has_written, "the writer to write", _PATIENCE_S)
        time.sleep(delay_s)
        self._process.kill()
        assert self._process.wait(_PATIENCE_S) == -signal.SIGKILL, "it was still writing"

    def _counted(self) -> int:
        """Return the number of records that are written, also by earlier writers; -1 before."""
        lines = self._progress.read_text().split("\n")[:-1] if self._progress.exists() else []
        return sum(map(int, lines)) if lines else -1


def test_a_topic_of_small_batches_gets_all_records_once(kafka_broker: RunningBroker) -> None:
    sink = _Sink(kafka_broker.bootstrap_servers, **{"max.message.bytes": "20000"})
    outputs = [output._replace(value=b"v" * 400) for output in outputs_of(2_000)]
    assert sink.write(outputs).written == 2_000
    assert sink.read() == outputs
    longer = [*outputs, outputs[0]._replace(value=secrets.token_bytes(30_000))]
    with pytest.raises(StreamsError, match=rf"{sink.at}: .*max\.message\.bytes"):
        sink.write(longer)
    assert sink.read() == outputs
    assert sink.write([*outputs, outputs[0]]).written == 1
    assert sink.read() == [*outputs, outputs[0]]
    sink.admin.close()


def test_a_reset_ends_writers_and_deletes_their_numbers(sink: _Sink, tmp_path: Path) -> None:
    outputs = outputs_of(10)
    sink.write(outputs)
    writer = sink.clients.transactional_producer(f"{sink.app}-backfill-out-{sink.at}", 60_000)
    with contextlib.closing(writer):
        writer.init()
        scope = ResetScope(application_id=sink.app)
        plan = plan_reset(scope, gather_facts(scope, sink.admin, tmp_path, "earliest"))
        assert plan.outputs_group == f"{sink.app}:backfill"
        execute_reset(plan, sink.admin, tmp_path)
        with pytest.raises(FencedError):
            _commit_one(writer, sink.at)
    assert sink.admin.groups(sink.app) == ()
    again = plan_reset(scope, gather_facts(scope, sink.admin, tmp_path, "earliest"))
    assert again.outputs_group == ""
    assert sink.read() == outputs


def _commit_one(writer: KafkaTransactionalProducer, at: TopicPartition) -> None:
    writer.begin()
    writer.produce(
        OutputColumns(
            topic=at.topic, partitions=at.partition, keys=[b"k"], values=[b"late"], timestamps=[1]
        )
    )
    writer.commit("unused", {})
