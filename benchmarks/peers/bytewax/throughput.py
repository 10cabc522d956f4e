"""Bytewax's programs of the suite throughput, in the style of its documentation.

Settings without an argument keep Bytewax's defaults. At SIGTERM it ends as at its input's end.
"""

import json
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

# Not installed in the type checker's environment.
import bytewax.operators as op  # type: ignore[import-not-found]
from bytewax.connectors.kafka import (  # type: ignore[import-not-found]
    KafkaSink,
    KafkaSinkMessage,
    KafkaSource,
    KafkaSourceMessage,
)
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.inputs import StatefulSourcePartition  # type: ignore[import-not-found]
from bytewax.recovery import RecoveryConfig, init_db_dir  # type: ignore[import-not-found]
from bytewax.run import cli_main  # type: ignore[import-not-found]
from confluent_kafka import Consumer, TopicPartition

#: As many as workers.
RECOVERY_PARTITIONS = 1

#: Set by the signal handler: the input has ended.
stopped: list[int] = []


class CommittingPartition(StatefulSourcePartition):  # type: ignore[misc]
    """A partition of KafkaSource that commits its progress; Bytewax only stores it on disk.

    Bytewax requests a batch of a new epoch once earlier epochs are in its recovery store. Its one
    worker has written their outputs by then. So a snapshot's offset is done at the next batch.
    """

    def __init__(self, part: StatefulSourcePartition, commit: Callable[[int], None]) -> None:
        self._part = part
        self._commit = commit
        self._snapshot = self._committed = 0

    def next_batch(self) -> list[KafkaSourceMessage]:
        if self._snapshot > self._committed:
            self._commit(self._snapshot)
            self._committed = self._snapshot
        if stopped:
            raise StopIteration
        batch: list[KafkaSourceMessage] = self._part.next_batch()
        return batch

    def next_awake(self) -> datetime | None:
        awake: datetime | None = self._part.next_awake()
        return awake

    def snapshot(self) -> int:
        self._snapshot = self._part.snapshot()
        return self._snapshot

    def close(self) -> None:
        self._part.close()


class CommittingSource(KafkaSource):  # type: ignore[misc]
    """KafkaSource that commits its progress under a group's name, like other systems."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        servers = parameters["bootstrap_servers"]
        super().__init__([servers], [parameters["input_topic"]])
        self._group = Consumer(
            {"bootstrap.servers": servers, "group.id": parameters["application_id"]}
        )

    def build_part(
        self, step_id: str, for_part: str, resume_state: int | None
    ) -> StatefulSourcePartition:
        partition, topic = for_part.split("-", 1)

        def commit(offset: int) -> None:
            self._group.commit(offsets=[TopicPartition(topic, int(partition), offset)])

        return CommittingPartition(super().build_part(step_id, for_part, resume_state), commit)


def event_of(message: KafkaSourceMessage) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(message.value)
    return event


def taxed(event: dict[str, Any]) -> KafkaSinkMessage:
    sale = {
        "id": event["id"],
        "user": event["user"],
        "kind": event["kind"],
        "cents": event["cents"] * 119 // 100,
    }
    return KafkaSinkMessage(sale["user"].encode(), json.dumps(sale).encode())


def stateless_json(stream: Any) -> Any:
    events = op.map("parse", stream, event_of)
    sales = op.filter("sales", events, lambda event: event["cents"] >= 5_000)
    return op.map("tax", sales, taxed)


def count_by_key(stream: Any) -> Any:
    return counted(op.key_on("key", stream, lambda message: message.key.decode()))


def word_count(stream: Any) -> Any:
    words = op.flat_map("split", stream, lambda message: message.value.decode().split())
    return counted(op.key_on("key", words, lambda word: word))


def counted(keyed: Any) -> Any:
    counts = op.stateful_map("count", keyed, count)
    return op.map(
        "write", counts, lambda item: KafkaSinkMessage(item[0].encode(), str(item[1]).encode())
    )


def count(seen: int | None, _value: Any) -> tuple[int, int]:
    after = (seen or 0) + 1
    return after, after


JOBS: Mapping[str, Callable[[Any], Any]] = {
    "stateless_json": stateless_json,
    "count_by_key": count_by_key,
    "count_by_key_hot": count_by_key,
    "count_by_key_large": count_by_key,
    "word_count": word_count,
}


def main(parameters: Mapping[str, str]) -> None:
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    flow = Dataflow(parameters["job"])
    stream = op.input("records", flow, CommittingSource(parameters))
    outputs = JOBS[parameters["job"]](stream)
    op.output(
        "outputs",
        outputs,
        KafkaSink([parameters["bootstrap_servers"]], parameters["output_topic"]),
    )
    recovery = Path(parameters["state_dir"])
    recovery.mkdir(parents=True)
    init_db_dir(recovery, RECOVERY_PARTITIONS)
    # `python -m bytewax.run` does the same, but accepts whole seconds only.
    cli_main(
        flow,
        epoch_interval=timedelta(milliseconds=int(parameters["commit_interval_ms"])),
        recovery_config=RecoveryConfig(recovery, timedelta(0)),
    )


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
