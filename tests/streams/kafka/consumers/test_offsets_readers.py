"""Readers of committed offsets: reused, but not more of them than a few groups need."""

from collections.abc import Iterator
from typing import Any

import pytest

from tidewheel.streams.kafka.client.client_log import ClientLog
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers import offsets_readers
from tidewheel.streams.kafka.consumers.offsets_readers import OffsetsReaders


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[OffsetsReaders]:
    monkeypatch.setattr(offsets_readers, "_MOST_READERS", 2)
    settings = ClientSettings(bootstrap_servers="127.0.0.1:1", application_id="many-groups")
    made = OffsetsReaders(settings, ClientLog("many-groups"))
    yield made
    made.close()


def reader_of(readers: OffsetsReaders, group_id: str) -> Any:
    with readers.lent(group_id, stable=True) as reader:
        return reader


def is_closed(reader: Any) -> bool:
    try:
        reader.poll(0)
    except RuntimeError:
        return True
    return False


def test_only_the_last_used_readers_are_kept(readers: OffsetsReaders) -> None:
    first, second = reader_of(readers, "first"), reader_of(readers, "second")
    assert reader_of(readers, "first") is first

    third = reader_of(readers, "third")

    assert list(map(is_closed, (first, second, third))) == [False, True, False]
    assert reader_of(readers, "first") is first
    assert reader_of(readers, "second") is not second


def test_a_reader_in_use_is_closed_by_its_last_borrower(readers: OffsetsReaders) -> None:
    with readers.lent("first", stable=True) as first:
        with readers.lent("first", stable=True) as again:
            assert again is first
            reader_of(readers, "second")
            reader_of(readers, "third")
        assert not is_closed(first)

    assert is_closed(first)
