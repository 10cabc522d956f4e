"""One run from start to figure, on a real broker, with small programs as systems."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.environment.systems import PEERS, SYSTEMS, System
from benchmarks.run import RunRequest, WrongResultError, run_once
from benchmarks.topics.generator import InputSpec, direct_counts
from benchmarks.topics.group_progress import GroupProgress
from benchmarks.topics.input_topic import create_topic, ensure_input, quiet_admin, record_count

if TYPE_CHECKING:
    from tidewheel.streams.broker import RunningBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOURCE = InputSpec(records=200_000, keys=1_000)
COPY = PEERS / "raw_client" / "consume_produce.py"


def request_for(system: System, name: str, guarantee: str = "exactly_once") -> RunRequest:
    return RunRequest(
        system=system,
        job="count_by_key",
        run_name=f"bench-test-{name}",
        guarantee=guarantee,
        commit_interval_ms=20,
        cache_bytes=0,
        threads=None,
        source=SOURCE,
        untimed_records=50_000,
    )


def changed_copy(folder: Path, old: str, new: str) -> System:
    text = COPY.read_text()
    assert text.count(old) == 1, "the line that is to be changed is still there"
    program = folder / "program.py"
    program.write_text(text.replace(old, new))
    command = [sys.executable, str(program)]
    return replace(SYSTEMS["raw-client"], command=lambda _job: command)


@pytest.mark.parametrize("system", ["raw-client", "raw-client-2"])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_right_run_has_a_figure(
    kafka_broker: "RunningBroker", guarantee: str, system: str
) -> None:
    servers = kafka_broker.bootstrap_servers
    ensure_input(servers, SOURCE)
    request = request_for(SYSTEMS[system], f"right-{guarantee}-{system}", guarantee)
    result = run_once(servers, request, direct_counts(SOURCE))
    assert result.outputs == SOURCE.records
    assert result.slope.records_per_s > 1_000
    assert result.slope.start.records >= request.untimed_records
    assert result.rss_mib_max > 10
    left = quiet_admin(servers).list_topics(timeout=30).topics
    assert not [topic for topic in left if request.run_name in topic]


def test_a_wrong_result_has_no_figure(kafka_broker: "RunningBroker", tmp_path: Path) -> None:
    servers = kafka_broker.bootstrap_servers
    ensure_input(servers, SOURCE)
    lossy = changed_copy(
        tmp_path,
        "        key, value = message.key(), message.value()\n",
        "        key, value = message.key(), message.value()\n"
        "        if message.partition() == 1 and message.offset() == 77:\n"
        "            continue\n",
    )
    with pytest.raises(WrongResultError, match="1 keys end with a wrong value"):
        run_once(servers, request_for(lossy, "lossy"), direct_counts(SOURCE))


def test_a_program_that_dies_is_reported_with_the_end_of_its_log(
    kafka_broker: "RunningBroker", tmp_path: Path
) -> None:
    servers = kafka_broker.bootstrap_servers
    ensure_input(servers, SOURCE)
    dying = changed_copy(
        tmp_path, "    stop = Stop()\n", "    stop = Stop()\n    raise SystemExit('no more')\n"
    )
    with pytest.raises(RunFailedError, match="exit code 1 after 0 records\nIt wrote:\nno more"):
        run_once(servers, request_for(dying, "dying"), direct_counts(SOURCE))


def test_the_input_is_filled_once(kafka_broker: "RunningBroker") -> None:
    servers = kafka_broker.bootstrap_servers
    source = replace(SOURCE, records=1_000, seed=5)
    ensure_input(servers, source)
    ensure_input(servers, source)
    assert record_count(servers, source.topic, source.partitions) == source.records


def test_an_internal_topic_is_done_when_only_a_marker_remains(
    kafka_broker: "RunningBroker",
) -> None:
    servers = kafka_broker.bootstrap_servers
    group = "bench-test-own"
    topic = f"{group}-words-repartition"
    create_topic(quiet_admin(servers), topic, 2)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, str(number), partition=1)
    producer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    done: list[bool] = []
    with GroupProgress(servers, group) as progress:
        for offset in (2, 3):
            consumer.commit(offsets=[TopicPartition(topic, 1, offset)], asynchronous=False)
            done.append(progress.own_topics_done())
        assert progress.committed([TopicPartition(topic, 1)]) == 3
    consumer.close()
    assert done == [False, True]


def test_records_purged_between_two_requests_hide_no_records(
    kafka_broker: "RunningBroker",
) -> None:
    servers, group = kafka_broker.bootstrap_servers, "bench-test-purging"
    topic = f"{group}-words-repartition"
    admin: Any = quiet_admin(servers)
    create_topic(admin, topic, 1)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(topic, str(number), partition=0)
    producer.flush(30)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()

    class Purging:
        def __init__(self, asker: Any) -> None:
            self._asker = asker

        def get_watermark_offsets(self, *asked: Any, **how: Any) -> tuple[int, int]:
            marks: tuple[int, int] = self._asker.get_watermark_offsets(*asked, **how)
            purged = admin.delete_records([TopicPartition(topic, 0, 5)])
            for each in purged.values():
                each.result(30)
            return marks

        def __getattr__(self, name: str) -> Any:
            return getattr(self._asker, name)

    with GroupProgress(servers, group) as progress:
        asker: Any = Purging(progress._asker)
        progress._asker = asker
        assert not progress.own_topics_done()
