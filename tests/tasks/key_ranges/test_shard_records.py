"""Records of shards: each is dealt to its shard once, and stretches know the whole partition."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.rebalance.model import Shard
from tidewheel.tasks.key_ranges.key_ranges import key_hash
from tidewheel.tasks.key_ranges.shard_records import ShardDeal
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

KEYS = [None, *(b"key-%d" % number for number in range(9))]
#: Key, timestamp, and offsets that are missing before the record.
RECORDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 99), st.integers(0, 2)), min_size=1, max_size=40
)


def run_of(records: list[tuple[bytes | None, int, int]]) -> SourceRecords:
    offsets, offset = list[int](), -1
    for _, _, missing in records:
        offset += 1 + missing
        offsets.append(offset)
    return SourceRecords(
        "in",
        0,
        offsets,
        [key for key, _, _ in records],
        [b"%d" % offset for offset in offsets],
        [timestamp for _, timestamp, _ in records],
        [(("number", b"%d" % offset),) for offset in offsets],
    )


def rows_between(run: SourceRecords, first: int, end: int) -> list[int]:
    return [row for row, offset in enumerate(run.offsets) if first <= offset < end]


@given(records=RECORDS, since=st.integers(0, 60), of=st.sampled_from([2, 4, 8]))
def test_each_record_is_dealt_to_the_shard_of_its_key(
    records: list[tuple[bytes | None, int, int]], since: int, of: int
) -> None:
    run = run_of(records)
    share = run.since(since)
    deal = ShardDeal(run)
    for shard in Shard.all_of(of):
        own = deal.own(share, shard)
        rows = [
            row
            for row, key in enumerate(run.raw_keys)
            if run.offsets[row] >= since
            and shard.first_hash <= key_hash(key, run.offsets[row]) < shard.end_hash
        ]
        if own is None:
            assert not rows
            continue
        expected = run.take(rows)
        assert own.offsets == expected.offsets
        assert own.raw_keys == expected.raw_keys
        assert own.raw_values == expected.raw_values
        assert own.timestamps == expected.timestamps
        assert own.headers == expected.headers


@given(records=RECORDS, since=st.integers(0, 60), data=st.data())
def test_slices_end_where_the_next_begins_and_together_have_the_time_of_all_records(
    records: list[tuple[bytes | None, int, int]], since: int, data: st.DataObject
) -> None:
    run = run_of(records)
    share = run.since(since)
    own = ShardDeal(run).own(share, Shard(1, 2))
    if own is None:
        return
    assert own.end_offset == run.end_offset
    assert own.latest_ms == max(share.timestamps)
    begin = share.offsets[0]
    start = 0
    while start < len(own):
        stop = data.draw(st.integers(start + 1, len(own)))
        # A slice of a slice, as after records that a buffer got back.
        part = own.slice(start, len(own)).slice(0, stop - start)
        start = stop
        rows = rows_between(run, begin, part.end_offset)
        assert part.latest_ms == max(run.timestamps[row] for row in rows)
        assert stop == len(own) or own.offsets[stop] == part.end_offset
        begin = part.end_offset
    assert begin == run.end_offset


@given(records=RECORDS, data=st.data())
def test_records_before_an_offset_end_there_and_have_the_time_up_to_it(
    records: list[tuple[bytes | None, int, int]], data: st.DataObject
) -> None:
    run = run_of(records)
    own = ShardDeal(run).own(run, Shard(1, 2))
    if own is None:
        return
    stop = data.draw(st.integers(1, run.end_offset + 2))
    first = data.draw(st.integers(0, len(own) - 1))
    part = own.slice(first, len(own)).before(stop)
    wanted = [offset for offset in own.offsets[first:] if offset < stop]
    assert list(part.offsets) == wanted
    assert part.end_offset == min(stop, run.end_offset)
    if wanted:
        begin = own.offsets[first] if first else 0
        rows = rows_between(run, begin, stop)
        assert part.latest_ms == max(run.timestamps[row] for row in rows)
