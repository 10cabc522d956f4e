"""Bytewax's side of the suite throughput: for each job the program its documentation would have you write.

Arguments are NAME=VALUE pairs, the same for every peer. Runs until SIGTERM, then ends as at the end of its input. It
runs in an environment of its own, without Tidewheel. What no argument names keeps Bytewax's own default.
"""

import json
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

# Not installed where our types are checked: it has an environment of its own.
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

#: As many as there are workers.
RECOVERY_PARTITIONS = 1

#: Set by the signal's handler: the input has come to its end.
stopped: list[int] = []


class ToldPartition(StatefulSourcePartition):  # type: ignore[misc]
    """A partition of KafkaSource that tells the broker how far it is done, which Bytewax itself only keeps on its disk.

    Bytewax asks for a batch of a new epoch only when the epochs before are in its recovery store; by then its one worker
    has also written what came of them. So the offset of a snapshot is done at the first batch after it.
    """

    def __init__(self, part: StatefulSourcePartition, tell: Callable[[int], None]) -> None:
        self._part = part
        self._tell = tell
        self._snapshot = self._told = 0

    def next_batch(self) -> list[KafkaSourceMessage]:
        """Tell what is done, and return what comes next."""
        if self._snapshot > self._told:
            self._tell(self._snapshot)
            self._told = self._snapshot
        if stopped:
            raise StopIteration
        batch: list[KafkaSourceMessage] = self._part.next_batch()
        return batch

    def next_awake(self) -> datetime | None:
        """Return when there may be more."""
        awake: datetime | None = self._part.next_awake()
        return awake

    def snapshot(self) -> int:
        """Return the offset to go on from."""
        self._snapshot = self._part.snapshot()
        return self._snapshot

    def close(self) -> None:
        """Close the consumer."""
        self._part.close()


class ToldSource(KafkaSource):  # type: ignore[misc]
    """KafkaSource, with its progress committed under a group's name as other systems do it."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        servers = parameters["bootstrap_servers"]
        super().__init__([servers], [parameters["input_topic"]])
        self._group = Consumer(
            {"bootstrap.servers": servers, "group.id": parameters["application_id"]}
        )

    def build_part(
        self, step_id: str, for_part: str, resume_state: int | None
    ) -> StatefulSourcePartition:
        """Return a partition that tells."""
        partition, topic = for_part.split("-", 1)

        def tell(offset: int) -> None:
            self._group.commit(offsets=[TopicPartition(topic, int(partition), offset)])

        return ToldPartition(super().build_part(step_id, for_part, resume_state), tell)


def event_of(message: KafkaSourceMessage) -> dict[str, Any]:
    """Return the event of a record."""
    event: dict[str, Any] = json.loads(message.value)
    return event


def taxed(event: dict[str, Any]) -> KafkaSinkMessage:
    """Return a sale with its tax, under its user."""
    sale = {
        "id": event["id"],
        "user": event["user"],
        "kind": event["kind"],
        "cents": event["cents"] * 119 // 100,
    }
    return KafkaSinkMessage(sale["user"].encode(), json.dumps(sale).encode())


def stateless_json(stream: Any) -> Any:
    """Parse, filter, map."""
    events = op.map("parse", stream, event_of)
    sales = op.filter("sales", events, lambda event: event["cents"] >= 5_000)
    return op.map("tax", sales, taxed)


def count_by_key(stream: Any) -> Any:
    """Count how often each key was seen."""
    return counted(op.key_on("key", stream, lambda message: message.key.decode()))


def word_count(stream: Any) -> Any:
    """Count the words of all lines, which are of all partitions."""
    words = op.flat_map("split", stream, lambda message: message.value.decode().split())
    return counted(op.key_on("key", words, lambda word: word))


def counted(keyed: Any) -> Any:
    """Return how often each key was seen, with each of its records."""
    counts = op.stateful_map("count", keyed, count)
    return op.map(
        "write", counts, lambda item: KafkaSinkMessage(item[0].encode(), str(item[1]).encode())
    )


def count(seen: int | None, _value: Any) -> tuple[int, int]:
    """Return what to remember and what to hand on."""
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
    """Run a dataflow with one job until a signal stops it."""
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    flow = Dataflow(parameters["job"])
    stream = op.input("records", flow, ToldSource(parameters))
    outputs = JOBS[parameters["job"]](stream)
    op.output(
        "outputs",
        outputs,
        KafkaSink([parameters["bootstrap_servers"]], parameters["output_topic"]),
    )
    recovery = Path(parameters["state_dir"])
    recovery.mkdir(parents=True)
    init_db_dir(recovery, RECOVERY_PARTITIONS)
    # `python -m bytewax.run` does the same, but knows whole seconds only.
    cli_main(
        flow,
        epoch_interval=timedelta(milliseconds=int(parameters["commit_interval_ms"])),
        recovery_config=RecoveryConfig(recovery, timedelta(0)),
    )


if __name__ == "__main__":
    main(dict(argument.split("=", 1) for argument in sys.argv[1:]))
