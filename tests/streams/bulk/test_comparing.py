"""Comparing two copies of a store finds exactly what differs."""

from hypothesis import given
from hypothesis import strategies as st

from state_stores.bulk_restore.content import StoredRow
from streams.bulk.comparing import compare

_copies = st.dictionaries(st.binary(max_size=2), st.binary(max_size=1), max_size=12)


def _rows(copy: dict[bytes, bytes]) -> list[StoredRow]:
    return [StoredRow(key, value, 0, place=key) for key, value in sorted(copy.items())]


@given(first=_copies, second=_copies)
def test_every_difference_is_found(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> None:
    """As many as the two copies differ in, each with what it is."""
    found = compare(_rows(first), _rows(second))
    expected = dict.fromkeys(first.keys() - second.keys(), "missing")
    expected |= dict.fromkeys(second.keys() - first.keys(), "too much")
    expected |= {
        key: "other value" for key in first.keys() & second.keys() if first[key] != second[key]
    }
    assert (found.rows, found.different) == (len(first), len(expected))
    listed = {each.row.key: each.what for each in found.listed}
    assert listed.items() <= expected.items()
    assert len(listed) == min(len(expected), 10)
