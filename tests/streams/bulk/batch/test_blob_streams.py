"""Streams of blobs can be read in any order, with bounded memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.bulk.batch.blob_streams import BlobStreams, Stream
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.batch.blobs import Blob

_STREAMS: list[Stream] = [("a", (0, 0)), ("a", (0, 1)), ("b", (1, 0))]


def _blobs(starts: dict[Stream, list[int]]) -> dict[Stream, list[Blob]]:
    return {
        (topic, task): [
            Blob(
                topic=topic,
                partition=0,
                task=task,
                number=number,
                orders=[start],
                keys=[b"k" * 20],
                values=[b"%d" % start],
                timestamps=[start],
            )
            for number, start in enumerate(sorted(orders))
        ]
        for (topic, task), orders in starts.items()
    }


def _placed(blobs: dict[Stream, list[Blob]]) -> list[tuple[tuple[int, Any], bytes]]:
    return sorted(
        ((0, (blob.orders[0], blob.topic, blob.task, blob.number)), blob.encode())
        for of_stream in blobs.values()
        for blob in of_stream
    )


@given(
    starts=st.fixed_dictionaries(
        {stream: st.lists(st.integers(0, 20), max_size=6) for stream in _STREAMS}
    ),
    turns=st.lists(st.integers(0, 2), max_size=40),
    buffered_bytes=st.sampled_from([0, 100, 1_000_000]),
)
def test_streams_can_be_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    starts: dict[Stream, list[int]],
    turns: list[int],
    buffered_bytes: int,
) -> None:
    blobs = _blobs(starts)
    counts = {stream: len(of_stream) for stream, of_stream in blobs.items()}
    streams = BlobStreams(
        iter(_placed(blobs)),
        counts,
        tmp_path_factory.getbasetemp(),
        buffered_bytes=buffered_bytes,
    )
    read: dict[int, list[Blob]] = {0: [], 1: [], 2: []}
    iterators: list[Iterator[Blob]] = [*streams.of_topic("a"), *streams.of_topic("b")]
    for turn in turns:
        read[turn] += filter(None, [next(iterators[turn], None)])
    for turn, rest in enumerate(iterators):
        read[turn] += rest
    streams.close()
    assert list(read.values()) == [blobs[stream] for stream in _STREAMS]


def test_a_stream_that_is_read_ahead_keeps_others_in_a_file(tmp_path: Path) -> None:
    """As for a table whose rows precede all clicks."""
    blobs = _blobs({("a", (0, 0)): list(range(100)), ("b", (1, 0)): [1_000]})
    counts = {stream: len(of_stream) for stream, of_stream in blobs.items()}
    streams = BlobStreams(iter(_placed(blobs)), counts, tmp_path, buffered_bytes=1_000)
    (clicks,) = streams.of_topic("b")
    assert next(clicks).orders == [1_000]
    in_memory = sum(len(data) for data in streams._waiting["a", (0, 0)] if isinstance(data, bytes))
    assert 0 < in_memory <= 1_000
    (rows,) = streams.of_topic("a")
    assert [blob.orders for blob in rows] == [[number] for number in range(100)]
    streams.close()


def test_a_missing_blob_is_an_error(tmp_path: Path) -> None:
    blobs = _blobs({("a", (0, 0)): [1, 2]})
    streams = BlobStreams(iter(_placed(blobs)[:1]), {("a", (0, 0)): 2}, tmp_path)
    (stream,) = streams.of_topic("a")
    assert next(stream).orders == [1]
    with pytest.raises(StreamsError, match="missing"):
        next(stream)
