"""The sample of the inputs' first records waits for slow brokers, and ends with an error."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.reset_admin import TIMEOUT_S
from tidewheel.streams.topology.key_placement import KeyCheck
from tidewheel.streams.worker import input_sample

_PARTITION = TopicPartition("in", 0)


class SlowSource:
    """Reads the only record after some time; each poll takes the time that it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after_s: float) -> None:
        self.now_s = 0.0
        self._after_s = after_s
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)

    def assign(self, positions: Any) -> None: ...

    def poll(self, _most: int, timeout_s: float) -> Sequence[Any]:
        self.now_s += timeout_s
        return []

    def positions(self) -> dict[TopicPartition, int]:
        return {_PARTITION: int(self.now_s >= self._after_s)}


def _sample(source: SlowSource) -> None:
    input_sample._sample(
        cast("Any", source), KeyCheck({"in": 1}, {}), {_PARTITION: 0}, {_PARTITION: 1}
    )


def test_slow_brokers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SlowSource(monkeypatch, after_s=TIMEOUT_S - 10)
    _sample(source)
    assert source.now_s >= TIMEOUT_S - 10


def test_a_sample_that_can_not_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StreamsError, match="in-0 were not read"):
        _sample(SlowSource(monkeypatch, after_s=TIMEOUT_S + 10))
