from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.layout.key_schema import after, prefix_end

KEYS = st.binary(max_size=5) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=5).map(bytes)


@given(KEYS, KEYS)
def test_after_is_the_next_key(key: bytes, other: bytes) -> None:
    assert key < after(key)
    assert not key < other < after(key)


@given(KEYS, KEYS)
def test_prefix_end_separates_keys_with_and_without_the_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    inside = key >= prefix and (end is None or key < end)
    assert inside == key.startswith(prefix)


@given(KEYS, KEYS)
def test_keys_below_a_prefix_are_in_its_range(prefix: bytes, rest: bytes) -> None:
    end = prefix_end(prefix)
    assert end is None or prefix <= prefix + rest < end
