"""Seeded records: always the same."""

from dataclasses import replace
from itertools import chain, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.topics.generator import BLOCK_RECORDS, InputSpec, direct_counts, record_blocks

SMALL = InputSpec(records=25_000, keys=500)
FIRST_VALUE = (
    b"00000000000054e829uhfwws2c6gtdxjtxzutjp nde5w6j3dk5yuqso7qoe1kqcl7cli2e5olwfm27051z708gble"
)
SECOND_VALUE = (
    b"000000000001ye753lurpmhlulrzwq290lgjjsym6wobmiy3pc7imlojo0lnjj7uv1t6ehgvl14e 0u1ivopf8lehz"
)


def records(spec: InputSpec) -> list[tuple[bytes, bytes]]:
    return list(chain.from_iterable(record_blocks(spec)))


def test_the_same_seed_generates_the_same_records() -> None:
    assert records(SMALL) == records(SMALL)


def test_another_seed_generates_other_records() -> None:
    first, second = records(SMALL), records(replace(SMALL, seed=SMALL.seed + 1))
    assert [key for key, _ in first] != [key for key, _ in second]
    assert {value[12:] for _, value in first}.isdisjoint({value[12:] for _, value in second})


def test_the_sequence_does_not_change_between_versions() -> None:
    assert next(record_blocks(InputSpec(records=2))) == [
        (b"k00004471", FIRST_VALUE),
        (b"k00029783", SECOND_VALUE),
    ]


@settings(max_examples=20)
@given(records_a=st.integers(1, 3 * BLOCK_RECORDS), records_b=st.integers(1, 3 * BLOCK_RECORDS))
def test_a_shorter_input_is_a_prefix_of_a_longer_one(records_a: int, records_b: int) -> None:
    short, long = sorted((records_a, records_b))
    spec = InputSpec(records=short, keys=100, value_bytes=20)
    longer = chain.from_iterable(record_blocks(replace(spec, records=long)))
    assert records(spec) == list(islice(longer, short))


def test_the_direct_count_is_that_of_the_records() -> None:
    counted: dict[bytes, int] = {}
    for key, _ in records(SMALL):
        counted[key] = counted.get(key, 0) + 1
    assert direct_counts(SMALL) == counted
    assert sum(counted.values()) == SMALL.records


def test_keys_are_about_uniform_and_values_have_the_requested_size() -> None:
    counts = direct_counts(SMALL)
    share = SMALL.records / SMALL.keys
    assert len(counts) == SMALL.keys
    assert max(counts.values()) < 2 * share
    assert {len(value) for _, value in records(SMALL)} == {SMALL.value_bytes}


def test_values_are_all_different() -> None:
    values = [value for _, value in records(SMALL)]
    assert len(set(values)) == len(values)


def test_a_value_too_small_for_its_number_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 12"):
        records(InputSpec(records=1, value_bytes=11))
