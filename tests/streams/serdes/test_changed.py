"""Changes in repartition topics: Kafka Streams' bytes only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import Serdes, SerializationError
from tidewheel.streams.serdes.changed import Change, ChangedSerde

SERDE = ChangedSerde(Serdes.bytes())


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (Change(None, b"old"), b"old\x00"),
        (Change(b"new", None), b"new\x01"),
        (Change(b"new", b"old"), b"\x06newold\x02"),
        (Change(b"", b"old"), b"\x00old\x02"),
        (Change(b"n" * 64, b""), b"\x80\x01" + b"n" * 64 + b"\x02"),
        (Change(b"n" * 8192, b"o"), b"\x80\x80\x01" + b"n" * 8192 + b"o\x02"),
    ],
)
def test_the_bytes_are_those_of_kafka_streams(change: Change, data: bytes) -> None:
    assert SERDE.serialize("t", change) == data
    assert SERDE.deserialize("t", data) == change


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (b"old\x01\x03", Change(None, b"old")),
        (b"new\x00\x04", Change(b"new", None)),
        (b"\x06newold\x01\x05", Change(b"new", b"old")),
    ],
)
def test_the_forms_that_kafka_streams_reads_but_does_not_write_yet_are_read(
    data: bytes, change: Change
) -> None:
    """One more byte marks the latest change of a versioned row (KIP-914)."""
    assert SERDE.deserialize("t", data) == change


@given(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=300))
def test_a_written_change_is_read_back(new: bytes | None, old: bytes | None) -> None:
    if new is None and old is None:
        with pytest.raises(SerializationError):
            SERDE.serialize("t", Change(new, old))
    else:
        assert SERDE.deserialize("t", SERDE.serialize("t", Change(new, old))) == (new, old)


@pytest.mark.parametrize(
    "data", [b"", b"\x06", b"\x03", b"\x06ne\x02", b"\x05newold\x02", b"\xff\xff\xff\xff\xff\x02"]
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="topic 't'"):
        SERDE.deserialize("t", data)
