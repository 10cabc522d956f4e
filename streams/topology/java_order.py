"""The order in which Java's `HashMap` and `TreeMap` give their keys back. Pure.

Kafka Streams' `Topology.describe()` prints the children of a node in an order that depends on both: it walks the nodes
in the order of their hash codes, and puts children into a sorted set by sizes that are still growing. To print the same
text, we do as they do.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

_CAPACITY: Final = 16
_BITS: Final = 0xFFFF_FFFF


def string_hash(text: str) -> int:
    """Return `String.hashCode()`, unsigned.

    >>> string_hash("hello")
    99162322
    """
    code = 0
    data = text.encode("utf-16-be")
    for index in range(0, len(data), 2):
        code = code * 31 + (data[index] << 8 | data[index + 1]) & _BITS
    return code


def hash_order(names: Iterable[str], capacity: int = _CAPACITY) -> list[str]:
    """Return distinct names in the order of a `HashMap` that they were put into in the given order.

    `capacity` is the number of buckets the map is made for.

    >>> hash_order(["b", "q", "a"])
    ['q', 'a', 'b']
    >>> hash_order(["b", "i"]), hash_order(["b", "i"], 3)
    (['b', 'i'], ['i', 'b'])
    """
    ordered = list(dict.fromkeys(names))
    buckets = 1 << max(capacity - 1, 0).bit_length()
    while len(ordered) > buckets * 3 // 4:
        buckets *= 2

    def bucket(name: str) -> int:
        code = string_hash(name)
        return (code ^ code >> 16) & buckets - 1

    return sorted(ordered, key=bucket)


class _Leaf(msgspec.Struct, eq=False):
    name: str
    red: bool = True
    left: "_Leaf | None" = None
    right: "_Leaf | None" = None


class TreeOrder:
    """A `TreeSet` of names whose comparator may change its mind: a name stays where it was put.

    `before(a, b)` says whether `a` is to stand before `b` as of now.

    >>> sizes = {"a": 1, "b": 1, "c": 1}
    >>> order = TreeOrder(lambda one, other: (-sizes[one], one) < (-sizes[other], other))
    >>> order.add("b"); sizes["c"] = 5; order.add("a"); order.add("c"); list(order)
    ['c', 'a', 'b']
    """

    def __init__(self, before: Callable[[str, str], bool]) -> None:
        self._before = before
        self._root: _Leaf | None = None

    def add(self, name: str) -> None:
        """Put a name where it belongs as of now; one that is met on the way there is the same one."""
        path: list[tuple[_Leaf, bool]] = []
        here = self._root
        while here is not None:
            if here.name == name:
                return
            left = self._before(name, here.name)
            path.append((here, left))
            here = here.left if left else here.right
        leaf = _Leaf(name)
        if not path:
            self._root = leaf
        elif path[-1][1]:
            path[-1][0].left = leaf
        else:
            path[-1][0].right = leaf
        self._balance(leaf, [each for each, _ in path])
        assert self._root is not None
        self._root.red = False

    def _balance(self, leaf: _Leaf, above: list[_Leaf]) -> None:
        """Restore the rules of a red-black tree (Cormen et al., as java.util.TreeMap), so that it has Java's shape."""
        while len(above) > 1 and above[-1].red:
            parent, grandparent = above[-1], above[-2]
            on_left = parent is grandparent.left
            uncle = grandparent.right if on_left else grandparent.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grandparent.red = True
                leaf, above = grandparent, above[:-2]
                continue
            if leaf is (parent.right if on_left else parent.left):
                self._rotate(parent, grandparent, left=on_left)
                parent = leaf
            parent.red, grandparent.red = False, True
            self._rotate(grandparent, above[-3] if len(above) > 2 else None, left=not on_left)  # noqa: PLR2004 - has it a parent
            return

    def _rotate(self, leaf: _Leaf, parent: _Leaf | None, *, left: bool) -> None:
        """Turn a leaf down to one side; its other child takes its place."""
        if left:
            up = leaf.right
            assert up is not None
            leaf.right, up.left = up.left, leaf
        else:
            up = leaf.left
            assert up is not None
            leaf.left, up.right = up.right, leaf
        if parent is None:
            self._root = up
        elif parent.left is leaf:
            parent.left = up
        else:
            parent.right = up

    def __iter__(self) -> Iterator[str]:
        """Yield the names in their order."""
        return self._walk(self._root)

    def _walk(self, leaf: _Leaf | None) -> Iterator[str]:
        if leaf is not None:
            yield from self._walk(leaf.left)
            yield leaf.name
            yield from self._walk(leaf.right)
