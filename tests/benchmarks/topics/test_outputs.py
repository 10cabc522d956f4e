"""The check of results by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.topics.outputs import OutputTally, decoder


def counted(*records: tuple[bytes, int]) -> OutputTally:
    tally = OutputTally(decoder("int64"))
    tally.add((key, count.to_bytes(8, "big")) for key, count in records)
    return tally


@given(st.lists(st.sampled_from([b"a", b"b", b"c"])))
def test_a_true_count_has_no_problem(keys: list[bytes]) -> None:
    seen: dict[bytes, int] = {}
    records: list[tuple[bytes, int]] = []
    for key in keys:
        seen[key] = seen.get(key, 0) + 1
        records.append((key, seen[key]))
    tally = counted(*records)
    assert tally.problems(seen) == []
    assert tally.outputs == len(keys)


def test_updates_may_be_cached() -> None:
    assert counted((b"a", 3), (b"a", 7)).problems({b"a": 7}) == []


def test_a_wrong_last_value_is_found_and_shown() -> None:
    assert counted((b"a", 1), (b"b", 2)).problems({b"a": 1, b"b": 3}) == [
        "1 keys end with a wrong value, e.g. 'b' (2 instead of 3)"
    ]


def test_missing_and_unknown_keys_are_found() -> None:
    assert counted((b"x", 1)).problems({b"a": 1}) == [
        "1 keys have no output, e.g. 'a'",
        "1 keys are not in the input, e.g. 'x'",
    ]


@pytest.mark.parametrize("second", [1, 2])
def test_a_count_that_does_not_grow_is_found(second: int) -> None:
    problems = counted((b"a", 2), (b"a", second), (b"a", 3)).problems({b"a": 3})
    assert problems == [f"1 times a count did not grow, e.g. 'a' from 2 to {second}"]


def test_a_copy_is_checked_by_its_records_per_key() -> None:
    tally = OutputTally(decoder("copy"))
    tally.add([(b"a", b"anything"), (b"a", b"else")])
    assert tally.problems({b"a": 2}) == []
    assert tally.problems({b"a": 3}) == ["1 keys end with a wrong value, e.g. 'a' (2 instead of 3)"]


def test_counts_as_json_are_read() -> None:
    tally = OutputTally(decoder("json"))
    tally.add([(b"a", b"1"), (b"a", b"2")])
    assert tally.problems({b"a": 2}) == []


@pytest.mark.parametrize("value", [b'"1"', b"1.5", b"null"])
def test_json_without_a_count_is_refused(value: bytes) -> None:
    with pytest.raises(TypeError, match="a count was expected"):
        OutputTally(decoder("json")).add([(b"a", value)])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="use int64, json or copy"):
        decoder("xml")
