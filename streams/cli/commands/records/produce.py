"""`tidewheel produce`: lines of standard input become records of a topic."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final, TextIO

from cyclopts import Parameter

from tidewheel.streams.cli.arguments import SettingsOptions
from tidewheel.streams.cli.commands.records.cluster import (
    check_count,
    chosen_partitions,
    client_settings,
    cluster_admin,
    partitions_of,
)
from tidewheel.streams.cli.commands.records.record_lines import LineError, NewRecord, record_lines
from tidewheel.streams.cli.group_access import wall_clock_ms
from tidewheel.streams.cli.output import print_json, text_console
from tidewheel.streams.errors import MissingOutputTopicError, StreamsError
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.kafka.producers.sink_producer import KafkaSinkProducer
from tidewheel.tasks.kafka.ports import SinkProducer
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

#: Records between two waits for the brokers' answers.
_BATCH: Final = 10_000


def produce(
    topic: str,
    /,
    *,
    key: str | None = None,
    value: str | None = None,
    text: _Flag = False,
    count: int | None = None,
    partition: int | None = None,
    registry: Annotated[Sequence[str], Parameter(negative=(), show_default=False)] = (),
    json: _Flag = False,
    settings: SettingsOptions | None = None,
) -> int:
    """Write the lines of standard input to a topic, one record each.

    A line is a JSON object with value and, if wanted, key, timestamp (ms) and headers, as `consume`
    prints them; its topic, partition and offset are ignored. A null value deletes its key. The
    partition follows from the key, as with Kafka's own clients. The first bad line ends the
    command; the records before it are written. So are those before a Ctrl-C.

    Exit codes: 0 all are written; 1 a line is no record, or the brokers refuse one; 7 Kafka could
    not be reached; 10 no such topic; 130 a Ctrl-C ended it.

    Args:
        topic: The topic.
        key: Serde of keys: bytes, string, int32, int64, float64, boolean, uuid, json, msgpack;
            avro or json_schema (schema from --registry), avro:FILE, avro:SUBJECT,
            protobuf:MODULE:CLASS, windowed:string:1m, session_windowed:string, or MODULE:NAME of a
            serde of your own. Default: the serde of the setting `topology` (tidewheel.toml) if that
            reads or writes the topic, else string.
        value: Serde of values, likewise.
        text: Each line is a value, without a key, and not JSON: for --value string the line as it
            is.
        count: End after this number of records.
        partition: Write to this partition.
        registry: URL of a schema registry, or a property of its client as name=value. Repeatable.
        json: Print the summary as JSON.
        settings: Settings.
    """
    check_count(count)
    lines = record_lines(topic, key, value, registry, settings)
    clients = client_settings(settings)
    with cluster_admin(clients) as admin:
        servers = clients.bootstrap_servers
        chosen_partitions(partitions_of(admin, topic, servers, MissingOutputTopicError), partition)
    parse = lines.text_record if text else lines.record
    writer = _Writer(
        KafkaSinkProducer(clients),
        topic,
        ANY_PARTITION if partition is None else partition,
        # What a person types is written line by line.
        batch=1 if sys.stdin.isatty() else _BATCH,
    )
    if sys.stdin.isatty():
        text_console(stderr=True).print("One record a line; Ctrl-D ends.", style="dim")
    written = writer.write(_records(sys.stdin, parse, count))
    if json:
        print_json({"topic": topic, "records": written})
    else:
        text_console().print(
            f"{written:,} records written to {topic}", highlight=False, markup=False
        )
    return ExitCode.INTERRUPTED if writer.is_interrupted else ExitCode.OK


def _records(
    lines: TextIO, parse: Callable[[int, str], NewRecord], count: int | None
) -> Iterator[NewRecord]:
    done = 0
    for number, line in enumerate(_decoded(lines), 1):
        text = line.rstrip("\r\n")
        if text.strip():
            yield parse(number, text)
            done += 1
        if done == count:
            return


def _decoded(lines: TextIO) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise LineError(f"standard input is not UTF-8 ({error.reason})") from None
    except OSError as error:
        raise LineError(f"standard input can't be read: {error.strerror}") from None


class _Writer:
    """Writer of records.

    Attributes:
        is_interrupted: True after a Ctrl-C, which ends the records.
    """

    def __init__(self, producer: SinkProducer, topic: str, partition: int, *, batch: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._batch = batch
        self._sent = 0
        self.is_interrupted = False

    def write(self, records: Iterator[NewRecord]) -> int:
        """Write the records, until a Ctrl-C; return their number.

        Raises:
            StreamsError: A line is no record, which it names, or records were not written.
        """
        try:
            for record in records:
                self._send(record)
                if self._sent % self._batch == 0:
                    self._flush()
            self._flush()
        except KeyboardInterrupt:
            self.is_interrupted = True
            self._flush()
        except LineError as error:
            self._flush()
            raise LineError(f"{error} ({self._sent:,} records before it are written)") from None
        finally:
            self._producer.close()
        return self._sent

    def _send(self, record: NewRecord) -> None:
        self._producer.produce(
            OutputColumns(
                topic=self._topic,
                partitions=self._partition,
                keys=[record.key],
                values=[record.value],
                timestamps=[wall_clock_ms() if record.timestamp is None else record.timestamp],
                headers=[record.headers] if record.headers else None,
            )
        )
        self._sent += 1

    def _flush(self) -> None:
        failures = self._producer.flush()
        if failures:
            raise StreamsError(
                f"{len(failures):,} of the last {min(self._sent, self._batch):,} records were not written: "
                f"{failures[0].error}"
            ) from failures[0].error
