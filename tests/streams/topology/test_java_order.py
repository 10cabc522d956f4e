"""Order of Java's hash maps and sorted sets, compared with Java's output."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.streams.topology.description import TreeOrder, hash_order, string_hash


def test_hash_codes_are_javas() -> None:
    assert string_hash("") == 0
    assert string_hash("KSTREAM-SOURCE-0000000000") == 1_861_603_632
    assert string_hash("polygenelubricants") == 1 << 31
    assert string_hash("\N{GRINNING FACE}") == 1_772_899


def test_names_are_ordered_by_bucket_and_then_by_age() -> None:
    assert hash_order(["q", "a", "b", "A"]) == ["q", "a", "A", "b"]
    assert hash_order("ponmlkjihgfedcba") == list("abcdefghijklmnop")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (".e.c.l.h.i+b1.a.e.i.j.d+c0.g.d", "acdeghijl"),
        (".j+c4.h.d.e.i.f.l+e1.k.h+d1.k.a", "deafhijkl"),
        (".h.d.e.g.h.b.c.h.l.f+i3+k3.a.d", "abcdefghl"),
        (".e.h.g.d.f.g.f.k+j4.j+f3.j.i+j1", "jdefghik"),
        (".i+c2.c+j0+b3+k2.d.k+f3.h.b.b.a.f", "bfckadhi"),
        (".d+a2+b0+k4.e+j4.l.g.a.f.e+i0.c.k", "kacdefgl"),
        (".l+b3+l2+a3.a.b.i.j.e+k2+d0+l4.f.g", "ablefgij"),
    ],
)
def test_a_tree_keeps_its_order_after_keys_change(steps: str, expected: str) -> None:
    sizes = dict.fromkeys("abcdefghijkl", 1)
    order = TreeOrder(lambda one, other: (-sizes[one], one) < (-sizes[other], other))
    for kind, name, by in re.findall(r"([.+])([a-l])(\d?)", steps):
        if kind == ".":
            order.add(name)
        else:
            sizes[name] += int(by)
    assert "".join(order) == expected


@given(st.lists(st.integers(0, 1_000), unique=True))
def test_a_tree_with_a_steady_comparator_sorts(numbers: list[int]) -> None:
    order = TreeOrder(lambda one, other: int(one) < int(other))
    for number in numbers:
        order.add(str(number))
        order.add(str(number))
    assert list(order) == [str(number) for number in sorted(numbers)]
