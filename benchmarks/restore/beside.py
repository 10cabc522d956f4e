"""Job `beside_running_task`: the steady input of its second half, and its rows.

Each competing load runs twice. Over a prefilled input the task is always busy, which gives its
rate. Its pauses there are mere commits, because work never ends. So pauses come from a second run
over a growing input. It grows at a tenth of the rate during the restore: a faster writer would use
a processor of its own.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from threading import Event, Thread
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.report.results import Row, make_rows
from benchmarks.topics import input_topic
from benchmarks.topics.generator import InputSpec, record_blocks

JOB: Final = "beside_running_task"
#: Competing loads in run order, and their row names. The burner comes last: it needs the processor
#: time of the restore, less the time for as many records without a load.
SYSTEM_OF: Final[Mapping[str, str]] = {
    "restore": "tidewheel",
    "nothing": "tidewheel-beside-nothing",
    "burner": "tidewheel-beside-burner",
}
#: Share of the busy task's rate during the restore.
STEADY_SHARE: Final = 0.1
_TICK_S: Final = 0.01
_LOOK_S: Final = 0.25
_FLUSH_S: Final = 30.0

Outcome = Mapping[str, Any]


def to_burn(found: Mapping[str, Outcome]) -> dict[str, str]:
    """Return the next run's duration and processor time, from the runs before it.

    A restore takes the time of its helpers, and that of brokers and worker for it. The run without
    a load shows the latter's time for the task's own records.
    """
    restore, nothing = found.get("restore"), found.get("nothing")
    if restore is None:
        return {"window_s": "0", "helpers_s": "0", "rest_s": "0"}
    rest_s = 0.0
    if nothing is not None:
        records = restore["records_per_s"] * restore["window_s"]
        a_record_s = nothing["busy_s"] / (nothing["records_per_s"] * nothing["window_s"])
        rest_s = restore["busy_s"] - records * a_record_s - restore["helpers_s"]
    return {
        "window_s": str(restore["window_s"]),
        "helpers_s": str(restore["helpers_s"]),
        "rest_s": str(round(max(rest_s, 0.0), 3)),
    }


@contextmanager
def steady_input(
    bootstrap_servers: str, topic: str, spec: InputSpec, records_per_s: float, *, group: str
) -> Generator[None]:
    """Write records to a new topic during the block, a few every 10 ms.

    Until the group's first commit it writes one each time: a backlog from the worker's start would
    keep it busy for as long again.
    """
    admin = input_topic.quiet_admin(bootstrap_servers)
    if topic in admin.list_topics(timeout=_FLUSH_S).topics:
        input_topic.delete_topics(admin, [topic])
    input_topic.create_topic(admin, topic, spec.partitions)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 2})
    ended, reads = Event(), Event()

    def write() -> None:
        records, written, began_s = _endless(spec), 0, 0.0
        while not ended.wait(_TICK_S):
            due = written + 1
            if reads.is_set():
                began_s = began_s or time.monotonic() - written / records_per_s
                due = int((time.monotonic() - began_s) * records_per_s)
            for key, value in islice(records, due - written):
                producer.produce(topic, value, key)
            written = due
            producer.poll(0)

    def look() -> None:
        while not ended.wait(_LOOK_S) and not _has_read(bootstrap_servers, group, topic, spec):
            pass
        reads.set()

    threads = [Thread(target=each, name="steady-input") for each in (write, look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        producer.flush(_FLUSH_S)


def _has_read(bootstrap_servers: str, group: str, topic: str, spec: InputSpec) -> bool:
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 3})
    try:
        places = [TopicPartition(topic, partition) for partition in range(spec.partitions)]
        return any(each.offset > 0 for each in consumer.committed(places, timeout=_FLUSH_S))
    except KafkaException:  # the broker does not know the group yet
        return False
    finally:
        consumer.close()


def _endless(spec: InputSpec) -> Iterator[tuple[bytes, bytes]]:
    while True:
        yield from chain.from_iterable(record_blocks(spec))


def beside_rows(
    busy: Mapping[str, Sequence[Outcome]],
    steady: Mapping[str, Sequence[Outcome]],
    *,
    records: int,
    date: str,
) -> list[Row]:
    """Return the rows: rate of a busy task, and longest pauses over the steady input.

    Args:
        busy: Results over the filled input, by competing load.
        steady: The same over the steady input.
        records: Number of restored records.
        date: The day.
    """
    rows: list[Row] = []
    for beside, runs in busy.items():
        metrics = {"records_per_s": [run["records_per_s"] for run in runs]}
        parameters: dict[str, Any] = {
            "records": records,
            "beside": beside,
            "window_s": [round(run["window_s"], 2) for run in runs],
            "busy_s": [round(run["busy_s"], 1) for run in runs],
            "pause_ms_busy": [round(run["pause_ms"]) for run in runs],
            "date": date,
        }
        calm = steady.get(beside)
        if calm:
            metrics["gap_ms_unmoved_max"] = [run["pause_ms"] for run in calm]
            parameters["steady_records_per_s"] = [round(run["records_per_s"]) for run in calm]
        rows += make_rows(
            metrics, system=SYSTEM_OF[beside], job=JOB, guarantee=None, parameters=parameters
        )
    return rows
