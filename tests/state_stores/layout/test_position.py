from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.layout.position import Position

POSITIONS = st.builds(
    Position,
    offset=st.integers(0, 2**63 - 1),
    topic_id=st.binary(min_size=16, max_size=16),
    written_at_ms=st.integers(0, 2**63 - 1),
)


@given(POSITIONS)
def test_positions_survive_encoding(position: Position) -> None:
    assert Position.decode(position.encode()) == position


@given(POSITIONS, st.integers(0), st.integers(1, 255))
def test_a_damaged_position_is_no_position(position: Position, where: int, flip: int) -> None:
    data = bytearray(position.encode())
    data[where % len(data)] ^= flip
    assert Position.decode(bytes(data)) is None


@given(POSITIONS, st.integers(0, 100))
def test_a_torn_position_is_no_position(position: Position, length: int) -> None:
    data = position.encode()
    assert Position.decode(data[: length % len(data)]) is None
    assert Position.decode(data + b"\x00") is None


@given(st.none() | st.binary(max_size=60))
def test_foreign_bytes_are_no_position(data: bytes | None) -> None:
    assert Position.decode(data) is None
