"""Parts of the in-memory database that contract and model tests do not reach."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.in_memory import InMemoryDatabase

keys = st.integers(0, 300).map(lambda number: b"%03d" % number)


@given(st.lists(st.lists(st.tuples(keys, st.booleans()), max_size=150), max_size=6))
def test_keys_stay_in_order_through_few_and_many_changes(
    writes: list[list[tuple[bytes, bool]]],
) -> None:
    database = InMemoryDatabase(["s"])
    model: dict[bytes, bytes] = {}
    for rows in writes:
        database.write({"s": [(key, b"v" if put else None) for key, put in rows]}, {})
        for key, put in rows:
            if put:
                model[key] = b"v"
            else:
                model.pop(key, None)
        assert list(database.iterate("s", None, None)) == sorted(model.items())


def test_a_dropped_view_is_forgotten() -> None:
    database = InMemoryDatabase(["s"])
    database.write({"s": [(b"a", b"1")]}, {})
    scan = database.iterate("s", None, None)
    family = database._families["s"]
    assert len(family._views) == 1
    del scan
    assert len(family._views) == 0
