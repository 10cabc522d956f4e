"""Latency of records, over two windows of half a minute."""

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.tasks.figures import LATENCY_WINDOW_MS, Latency

BATCHES = st.lists(
    st.tuples(st.integers(0, 20_000), st.lists(st.integers(-9, 99_999), min_size=1)), min_size=1
)


@given(BATCHES)
def test_values_are_those_of_the_last_two_windows(batches: list[tuple[int, list[int]]]) -> None:
    latency, now_ms = Latency(), 0
    windows: list[tuple[int, list[int]]] = []
    for pause_ms, timestamps in batches:
        now_ms += pause_ms
        if not windows or now_ms - windows[-1][0] >= LATENCY_WINDOW_MS:
            windows.append((now_ms, []))
        windows[-1][1].extend(now_ms - timestamp for timestamp in timestamps)
        latency.observe(now_ms, timestamps)
        last = [
            latency_ms
            for began_ms, latencies in windows[-2:]
            if now_ms - began_ms < 2 * LATENCY_WINDOW_MS
            for latency_ms in latencies
        ]
        assert latency.values(now_ms) == (sum(last) / len(last), min(last), max(last))
    assert latency.values(now_ms + 2 * LATENCY_WINDOW_MS) is None


def test_parts_add_up_and_old_windows_go() -> None:
    total, first, second = Latency(), Latency(), Latency()
    for number in range(9):
        first.observe(number * LATENCY_WINDOW_MS, [0])
        total.add(first)
    assert len(total.windows) <= 2 * 2
    now_ms = 8 * LATENCY_WINDOW_MS
    second.observe(now_ms, [now_ms - 5])
    total.add(second)
    total.add(Latency())
    values = total.values(now_ms)
    assert values is not None
    assert (values.least, values.most) == (5, now_ms)
