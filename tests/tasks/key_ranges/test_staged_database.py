"""Staged database: sealed rows are visible immediately, also before the write below."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.errors import InvalidStateStoreError
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.tasks.key_ranges.staged_database import StagedDatabase

_KEYS = [b"%d" % number for number in range(6)]
_CHANGES = st.dictionaries(st.sampled_from(_KEYS), st.none() | st.binary(max_size=2), max_size=4)
#: Changes of a seal, and the number of seals written below after it.
_SEALS = st.lists(st.tuples(_CHANGES, st.integers(0, 3)), max_size=12)


@given(seals=_SEALS, low=st.integers(0, 6), high=st.integers(0, 6), reverse=st.booleans())
def test_K3_a_range_reads_its_sealed_rows_over_committed_rows(
    seals: list[tuple[dict[bytes, bytes | None], int]], low: int, high: int, reverse: bool
) -> None:
    below = InMemoryDatabase(["counts"])
    below.write({"counts": [(key, b"committed") for key in _KEYS[::2]]}, {"note": b"0"})
    model = dict.fromkeys(_KEYS[::2], b"committed")
    staged = StagedDatabase(below, ["counts"])
    lower, upper = b"%d" % low, b"%d" % high
    waiting: list[dict[bytes, bytes | None]] = []
    for number, (changes, written) in enumerate(seals, 1):
        keys = sorted(changes)
        rows = SortedRows(keys, [changes[key] for key in keys])
        staged.stage(number, {"counts": rows}, {"note": b"%d" % number})
        waiting.append(changes)
        for key, value in changes.items():
            model.pop(key, None)
            if value is not None:
                model[key] = value
        for _ in range(min(written, len(waiting))):
            done = waiting.pop(0)
            below.write({"counts": list(done.items())}, {})
            staged.applied = number - len(waiting)
        assert staged.get_many("counts", _KEYS) == [model.get(key) for key in _KEYS]
        expected = sorted(
            ((key, value) for key, value in model.items() if lower <= key < upper), reverse=reverse
        )
        assert list(staged.iterate("counts", lower, upper, reverse=reverse)) == expected
        assert staged.position("note") == b"%d" % number


def test_K4_an_ended_range_reads_no_rows() -> None:
    staged = StagedDatabase(InMemoryDatabase(["counts"]), ["counts"])
    staged.close()
    with pytest.raises(InvalidStateStoreError, match="this key range is over"):
        staged.get_many("counts", [b"1"])
