"""Tests of comparing two copies of a store."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel.state_stores.bulk_restore.content import StoredRow
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.streams.bulk.content import Content
from tidewheel.streams.bulk.verify import compare, compare_contents

_copies = st.dictionaries(st.binary(max_size=2), st.binary(max_size=1), max_size=12)


def _rows(copy: dict[bytes, bytes]) -> list[StoredRow]:
    return [StoredRow(key, value, 0, place=key) for key, value in sorted(copy.items())]


@given(first=_copies, second=_copies)
def test_every_difference_is_found(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> None:
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


@pytest.mark.parametrize("compacted_first", [True, False])
def test_expired_rows_of_a_compacted_log_are_no_difference(
    tmp_path: Path, compacted_first: bool
) -> None:
    spec = replace(SPECS["key-value"], ttl_ms=100)

    def content(name: str, rows: dict[bytes, tuple[bytes | None, int]]) -> Content:
        path = tmp_path / name
        path.mkdir()
        runs = RunBuilder(spec, path, partition=0, from_offset=0, complete_from_zero=True)
        values, times = zip(*rows.values(), strict=True)
        runs.add(list(rows), list(values), list(times), len(rows))
        built = runs.finish(len(rows))
        return Content(built.files, built.time)

    contents = [
        content("compacted", {b"ended": (b"1", 0), b"other": (b"1", 50)}),
        content("whole", {b"ended": (b"1", 0), b"other": (b"2", 50), b"gone": (None, 120)}),
    ]
    found = compare_contents(spec, *(contents if compacted_first else contents[::-1]))
    assert (found.rows, [(each.row.key, each.what) for each in found.listed]) == (
        1,
        [(b"other", "other value")],
    )
