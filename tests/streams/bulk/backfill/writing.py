"""Writer process of a sink partition: takes `WritingOrder` on standard input, reports to a file."""

import sys
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tidewheel import StreamsBuilder
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.bulk import bounded_transactions
from tidewheel.streams.bulk.backfill.output_writer import OutputItem, OutputOrder, write_outputs
from tidewheel.streams.bulk.batch.executors import Work
from tidewheel.streams.kafka.client.settings import ClientSettings

#: Records per transaction: a kill falls into any step of one.
_RECORDS: Final = 100


class WritingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order of one writer; `progress` is the file that it appends the counted records to."""

    servers: str
    order: OutputOrder
    url: str
    item: OutputItem
    progress: str


def work_at(url: str) -> Work:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("out")
    return Work(job=BatchJob.of(builder.build(), None, {"in": 1}), url=url)


def main() -> int:
    writing = msgspec.json.decode(sys.stdin.buffer.read(), type=WritingOrder)
    settings = ClientSettings(
        bootstrap_servers=writing.servers, application_id=writing.order.application_id
    )
    with (
        pytest.MonkeyPatch.context() as patch,
        Path(writing.progress).open("a", encoding="ascii", buffering=1) as progress,
    ):
        patch.setattr(bounded_transactions, "TRANSACTION_RECORDS", _RECORDS)
        write_outputs(
            work_at(writing.url),
            settings,
            writing.order,
            writing.item,
            lambda count: print(count, file=progress),
        )
    return 0
