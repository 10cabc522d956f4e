"""Damaged and hostile bytes, and the bounds of their cost."""

import struct
import time
import tracemalloc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st

#: Far more than any reader of a small input needs, and far less than its largest length field asks.
_BYTES_MAX: Final = 32 * 1024 * 1024
_PROCESSOR_S_MAX: Final = 10.0
#: Examples of each test in `make test`.
_EXAMPLES: Final = 50

#: Numbers at the limits of length, count and time fields, in both byte orders and as varints.
_EXTREMES: Final = (
    *(
        struct.pack(form, number)
        for form in (">i", "<i")
        for number in (-(2**31), -8, -1, 2**31 - 1)
    ),
    *(struct.pack(form, number) for form in (">q", "<q") for number in (-(2**63), -1, 2**63 - 1)),
    b"\xff" * 9 + b"\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff" * 30,
    b"\x00" * 8,
)
_NESTED: Final = st.builds(
    lambda depth, opened: opened * depth,
    st.integers(1, 20_000),
    st.sampled_from([b"[", b'{"a":', b"\x91", b"\x81\xa1a", b"\x0a\x02", b'"', b"(", b"\x02"]),
)
#: Characters of arguments and variables: bytes that are not UTF-8 become such surrogates.
CHARACTERS: Final = st.characters(
    exclude_categories=["Cs"], include_characters="\udc80\udcff", exclude_characters="\0"
)
NOISE: Final = st.binary(max_size=80) | st.sampled_from(_EXTREMES) | _NESTED


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Draw valid bytes with one to four faults: flips, cuts, extreme numbers, swaps, repeats."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        match draw(st.sampled_from(["flip", "cut", "end", "extreme", "swap", "repeat", "noise"])):
            case "flip" if start < len(data):
                data[start] ^= draw(st.integers(1, 255))
            case "cut":
                del data[start:end]
            case "end":
                del data[start:]
            case "extreme":
                extreme = draw(st.sampled_from(_EXTREMES))
                data[start : start + len(extreme)] = extreme
            case "swap":
                data = data[start:end] + data[:start] + data[end:]
            case "repeat":
                data[start:start] = data[start:end] * draw(st.integers(1, 3))
            case _:
                data[start:start] = draw(NOISE)
    return bytes(data)


def hostile(valid: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    return NOISE | st.sampled_from(valid).flatmap(damaged)


def examples(number: int) -> settings:
    """Return settings of this many examples, and of as many times more as the profile asks for."""
    return settings(max_examples=number * settings().max_examples // _EXAMPLES)


@contextmanager
def bounded(processor_s: Callable[[], float] = time.thread_time) -> Generator[None]:
    """Check that the block allocates and computes little, whatever its input asks for."""
    tracemalloc.start()
    begun_s = processor_s()
    try:
        yield
        took_s, (_, peak_bytes) = processor_s() - begun_s, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < _BYTES_MAX, f"{peak_bytes} bytes"
    assert took_s < _PROCESSOR_S_MAX, f"{took_s} s"
