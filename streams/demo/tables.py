"""Tables of the archive as rows and Kafka records, read without unpacking to disk.

`NA` becomes null, numbers become numbers, times stay text.
"""

import csv
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final

import orjson

from tidewheel.streams.demo.dataset import NAME, VERSION, DatasetError
from tidewheel.tasks.processing.engine.output import ANY_PARTITION, OutputColumns

#: Cell texts by column name.
Row = dict[str, str]

_MISSING: Final = "NA"
_BATCH_RECORDS: Final = 10_000
#: Timestamp (ms) for tables without times: the start of 2013.
_NEW_YEAR_MS: Final = 1_356_998_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Table and topic of the same name; `text` columns stay text, others are numbers."""

    name: str
    key: str
    rows: int
    text: frozenset[str]
    time: str | None = None


TABLES: Final = (
    Table(name="airlines", key="carrier", rows=16, text=frozenset({"carrier", "name"})),
    Table(
        name="airports",
        key="faa",
        rows=1_458,
        text=frozenset({"faa", "name", "dst", "tzone"}),
    ),
    Table(
        name="planes",
        key="tailnum",
        rows=3_322,
        text=frozenset({"tailnum", "type", "manufacturer", "model", "engine"}),
    ),
    Table(
        name="weather",
        key="origin",
        rows=26_115,
        text=frozenset({"origin", "time_hour"}),
        time="time_hour",
    ),
    Table(
        name="flights",
        key="tailnum",
        rows=336_776,
        text=frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"}),
        time="time_hour",
    ),
)


def table(name: str) -> Table:
    return next(entry for entry in TABLES if entry.name == name)


def read_rows(archive: Path, name: str) -> Iterator[Row]:
    """Yield the rows of a table; raise `DatasetError` if it is missing."""
    folder = f"{NAME}-{VERSION}/{NAME}/data"
    with tarfile.open(archive, "r:gz") as tar:
        members = {member.name: member for member in tar if member.isfile()}
        plain, zipped = (members.get(f"{folder}/{name}.csv{end}") for end in ("", ".zip"))
        member = plain or zipped
        file = None if member is None else tar.extractfile(member)
        if file is None:
            raise DatasetError(
                f"{archive} has no table {name!r}; delete it to have it fetched again"
            )
        data = file.read()
    if plain is None:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            data = inner.read(f"{name}.csv")
    yield from csv.DictReader(io.StringIO(data.decode()))


def to_value(row: Row, text: frozenset[str]) -> bytes:
    """Return a row as JSON.

    >>> to_value({"name": "Ada", "age": "36", "shoes": "NA"}, frozenset({"name"}))
    b'{"name":"Ada","age":36,"shoes":null}'
    """
    # Copy: orjson's result keeps its 8 KB buffer until all records are sent.
    return b"%b" % orjson.dumps(
        {
            column: None if cell == _MISSING else cell if column in text else _number(cell)
            for column, cell in row.items()
        }
    )


def to_batches(of: Table, rows: Iterable[Row]) -> Iterator[OutputColumns]:
    remaining = iter(rows)
    # Cache of parsed times: hundreds of flights share one, and parsing would dominate the run time.
    moments: dict[str, int] = {}
    while batch := list(islice(remaining, _BATCH_RECORDS)):
        yield OutputColumns(
            topic=of.name,
            partitions=ANY_PARTITION,
            keys=[None if row[of.key] == _MISSING else row[of.key].encode() for row in batch],
            values=[to_value(row, of.text) for row in batch],
            timestamps=[
                _NEW_YEAR_MS if of.time is None else _moment_ms(row[of.time], moments)
                for row in batch
            ],
        )


def _moment_ms(text: str, cache: dict[str, int]) -> int:
    moment = cache.get(text)
    if moment is None:
        moment = cache[text] = int(datetime.fromisoformat(text).timestamp() * 1000)
    return moment


def _number(cell: str) -> float:
    try:
        return int(cell)
    except ValueError:
        return float(cell)
