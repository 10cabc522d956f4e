"""Reports of stalled restores: once, then every minute."""

from collections.abc import Sequence

import pytest

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.restore.store_changelog_reader import ReadProgress, Stall, Stalls, explained

LOG = TopicPartition("app-counts-changelog", 1)
OPEN = OpenTransaction(
    partition=LOG,
    start=5,
    end=9,
    servers="broker:9092",
    transactional_id="writer",
    producer_id=7,
    producer_epoch=2,
    state="Ongoing",
)


class Admin:
    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        if self.away:
            raise StreamsError("no broker is there")
        assert not any(isinstance(each, ShardInput) for each in partitions), "no broker has shards"
        return {each: OPEN for each in partitions if each == LOG}


def _seconds_of_reports(*positions: int, end: int = 9) -> list[int]:
    stalls = Stalls()
    return [
        second
        for second, position in enumerate(positions)
        if stalls.check({LOG: ReadProgress(position, end)}, float(second))
    ]


def test_a_restore_with_progress_is_never_reported() -> None:
    assert _seconds_of_reports(*(second // 4 for second in range(40)), end=100) == []


def test_a_stall_is_reported_after_seconds_and_again_every_minute() -> None:
    assert _seconds_of_reports(*[5] * 70, *[6] * 7) == [5, 65, 75]


@pytest.mark.parametrize("position", [9, 10])
def test_a_partition_at_its_end_does_not_stall(position: int) -> None:
    assert _seconds_of_reports(*[position] * 20) == []


def test_a_partition_that_is_left_out_is_forgotten() -> None:
    stalls = Stalls()
    stalls.check({LOG: ReadProgress(5, 9)}, 0.0)
    assert not stalls.is_stalled(LOG, 4.0)
    assert stalls.is_stalled(LOG, 5.0)
    stalls.check({}, 5.0)
    assert not stalls.is_stalled(LOG, 6.0)
    assert not stalls.check({LOG: ReadProgress(5, 9)}, 7.0)


@pytest.mark.parametrize("shard", [Shard(), Shard(1, 4)])
def test_the_reason_names_the_transaction_and_the_command_that_ends_it(shard: Shard) -> None:
    stall = Stall(ShardInput.of(LOG, shard), ReadProgress(5, 9), 6.0)
    (text,) = explained([stall], Admin())
    for part in ("writer", "producer id 7", "epoch 2", str(LOG), "offset 5", OPEN.command):
        assert part in text
    assert not OPEN.is_hanging


def test_the_reason_names_a_missing_transaction_or_answer() -> None:
    other = Stall(TopicPartition("other", 0), ReadProgress(5, 9), 6.0)
    (text,) = explained([other], Admin())
    assert "other-0" in text
    assert "brokers" in text
    (text,) = explained([other], Admin(away=True))
    assert "no broker is there" in text
    assert explained([], Admin(away=True)) == []


@pytest.mark.parametrize(
    ("state", "hangs"),
    [
        ("Ongoing", False),
        ("PrepareAbort", False),
        ("CompleteAbort", True),
        ("Empty", True),
        ("", False),
    ],
)
def test_a_transaction_hangs_when_its_coordinator_has_ended_it(state: str, hangs: bool) -> None:
    found = OpenTransaction(partition=LOG, start=5, end=9, state=state)
    assert found.is_hanging is hangs
