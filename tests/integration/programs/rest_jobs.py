"""Topologies of tests of rest: every input record has results that name it."""

from typing import Any, Final

from tidewheel import Serdes, StreamsBuilder

_TEXT: Final = Serdes.string()
_TEXTS: Final[dict[str, Any]] = {"key_serde": _TEXT, "value_serde": _TEXT}


def rekeyed_counts(source: str, sink: str) -> StreamsBuilder:
    """Count by the second word of values, behind a repartition topic.

    An output has the count and the record's id, which is the value's first word.
    """
    builder = StreamsBuilder()
    (
        builder.stream(source, **_TEXTS)
        .map(lambda _, value: (value.split()[1], value.split()[0]))
        .group_by_key(**_TEXTS)
        .aggregate(
            lambda: "0 none",
            lambda _, record_id, last: f"{int(last.split()[0]) + 1} {record_id}",
            value_serde=_TEXT,
        )
        .to_stream()
        .to(sink, **_TEXTS)
    )
    return builder


def joined_by_foreign_key(source: str, sink: str) -> StreamsBuilder:
    """Join a table with the table of topic `<source>-2` by the first word of its values."""
    builder = StreamsBuilder()
    other = builder.table(f"{source}-2", **_TEXTS)
    (
        builder.table(source, **_TEXTS)
        .join(
            other, lambda left, right: f"{left}+{right}", foreign_key=lambda value: value.split()[0]
        )
        .to_stream()
        .to(sink, **_TEXTS)
    )
    return builder


REST_JOBS: Final = (rekeyed_counts, joined_by_foreign_key)
