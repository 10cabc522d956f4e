"""The view of a commit in flight equals the database after the commit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.buffers.commit_buffer import Drained, write_rows
from tidewheel.state_stores.buffers.in_flight_view import InFlightView
from tidewheel.state_stores.buffers.merged_changes import merge_changes
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.in_memory import InMemoryDatabase

keys = st.binary(max_size=2) | st.sampled_from([b"k%d" % number for number in range(10)])
rows = st.dictionaries(keys, st.none() | st.binary(max_size=3))
bounds = st.none() | keys
ranges = st.none() | st.tuples(keys, keys)


def drained(
    changes: dict[bytes, bytes | None], gone: tuple[bytes, bytes] | None, metadata: dict[str, bytes]
) -> Drained:
    ordered = sorted(changes)
    on_disk = SortedRows(ordered, [changes[key] for key in ordered])
    return Drained([], [], [], disk_rows=on_disk, delete_range=gone, metadata=metadata)


@given(
    before=rows,
    changes=rows,
    gone=ranges,
    asked=st.lists(keys),
    lower=bounds,
    upper=bounds,
    metadata=st.dictionaries(st.sampled_from("ab"), st.binary(min_size=1, max_size=2)),
)
def test_a_view_equals_the_database_after_the_commit(
    before: dict[bytes, bytes | None],
    changes: dict[bytes, bytes | None],
    gone: tuple[bytes, bytes] | None,
    asked: list[bytes],
    lower: bytes | None,
    upper: bytes | None,
    metadata: dict[str, bytes],
) -> None:
    database = InMemoryDatabase(["mine", "other"])
    written = sorted(before.items())
    database.write({"mine": written, "other": written}, {"a": b"0"})
    view = InFlightView(database)

    def seen() -> list[object]:
        return [
            *(view.get_many(store, asked) for store in ("mine", "other")),
            *(
                list(view.iterate(store, lower, upper, reverse=reverse))
                for store in ("mine", "other")
                for reverse in (False, True)
            ),
            *map(view.position, "ab"),
        ]

    untouched = seen()
    change = drained(changes, gone, metadata)
    view.show({"mine": change}, {})
    under_way = seen()
    begun = view.iterate("mine", lower, upper)
    view.hide()
    assert seen() == untouched
    view.show({"mine": change}, {})
    write_rows(database, {"mine": change.stored}, {}, {"mine": change})
    assert seen() == under_way
    view.hide()
    assert seen() == under_way
    assert list(begun) == under_way[2], "a scan goes on as it began"


def test_rows_of_both_parts_of_a_commit_are_visible() -> None:
    database = InMemoryDatabase(["mine"])
    view = InFlightView(database)
    first, second = drained({b"a": b"1"}, None, {}), drained({b"b": b"2"}, None, {})
    view.show({"mine": first}, {"mine": 1})
    assert view.get_many("mine", [b"a", b"b"]) == [b"1", None]
    view.show({"mine": merge_changes([first, second])}, {"mine": 1})
    assert view.get_many("mine", [b"a", b"b"]) == [b"1", b"2"]
    assert view.approximate_num_entries("mine") == 2
    view.hide()
    view.show({"mine": second}, {"mine": 1})
    assert view.approximate_num_entries("mine") == 1


def test_a_view_refuses_writes() -> None:
    view = InFlightView(InMemoryDatabase(["mine"]))
    with pytest.raises(AssertionError, match="mine"):
        view.write({"mine": []}, {})
    with pytest.raises(AssertionError, match="mine"):
        view.clear("mine")
    with pytest.raises(AssertionError):
        view.close()
