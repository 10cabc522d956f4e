"""Layers: each key's records keep their order, and each record is in one run."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.batch.layers import layers


@given(drawn=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a", b"b", b"c", None]))))
def test_each_key_keeps_the_order_of_its_records(drawn: list[tuple[int, bytes | None]]) -> None:
    keys: list[list[bytes | None]] = [[], [], []]
    places: list[list[int]] = [[], [], []]
    for place, (number, key) in enumerate(drawn):
        keys[number].append(key)
        places[number].append(place)
    order = [
        (keys[number][row], places[number][row])
        for number, rows in layers(keys, places)
        for row in rows
    ]
    assert len(order) == len(drawn)
    for key in (b"a", b"b", b"c", None):
        own = [place for place, (_, other) in enumerate(drawn) if other == key]
        assert [place for other, place in order if other == key] == own


def test_inputs_in_turns_have_as_many_runs_as_a_key_changes_its_input() -> None:
    keys = [b"%d" % (place // 2 % 50) for place in range(400)]
    found = list(layers([keys[::2], keys[1::2]], [range(0, 400, 2), range(1, 400, 2)]))
    assert [number for number, _ in found] == [0, 1] * 4
