"""Records of a sink partition, and the group log of a backfill that writes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import pytest

from tidewheel.rebalance.leader.bootstrapping import EVERY_STORE, begin_load
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.model import BootstrapPhase, TopicPartition
from tidewheel.rebalance.protocol.group import Group, replay
from tidewheel.rebalance.protocol.records import AnyRecord, BootstrapRecord
from tidewheel.streams.bulk import bounded_transactions
from tidewheel.streams.bulk.backfill import output_writer
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

TIME_MS: Final = 1_600_000_000_000


class Output(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers


def outputs_of(count: int) -> list[Output]:
    """Return records of which some have no key, no value, or headers; times fall now and then."""
    return [
        Output(
            None if number % 5 == 1 else b"k%d" % (number % 4),
            None if number % 7 == 2 else b"v%d" % number,
            TIME_MS + number - 10 * (number % 3),
            (("n", b"%d" % number), ("none", None)) if number % 4 == 3 else (),
        )
        for number in range(count)
    ]


def runs_of(
    at: TopicPartition, outputs: Sequence[Output], sizes: Sequence[int]
) -> Iterator[SourceRecords]:
    """Yield the records in runs of these sizes, again and again."""
    first = number = 0
    while first < len(outputs):
        part = outputs[first : first + sizes[number % len(sizes)]]
        headers = [record.headers for record in part]
        yield SourceRecords(
            at.topic,
            at.partition,
            range(first, first + len(part)),
            [record.key for record in part],
            [record.value for record in part],
            [record.timestamp for record in part],
            headers if any(headers) else None,
        )
        first += len(part)
        number += 1


def begin_backfill(group: Group, attempt: str) -> list[AnyRecord]:
    record = BootstrapRecord(
        leader_epoch=0, store=EVERY_STORE, attempt=attempt, phase=BootstrapPhase.WRITING.value
    )
    return begin_load(group, record, Claimant(leader=f"backfill-{attempt}"))


def backfilled_group(attempt: str) -> Group:
    return replay(begin_backfill(Group(), attempt))


@contextmanager
def small_transactions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_transactions, "TRANSACTION_RECORDS", 9)
        patch.setattr(output_writer, "PRODUCE_RECORDS", 4)
        yield
