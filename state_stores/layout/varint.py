"""Numbers of as many bytes as they need, as RocksDB's files and Kafka's records have them."""

from typing import Final

_SEVEN_BITS: Final = 0x7F
#: Set in every byte of a number but the last.
MORE: Final = 0x80


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number (seven bits a byte, the least first) and the place behind it; raises `IndexError` at the end of the data.

    >>> read_varint(bytes((0xAC, 0x02, 7)), 0)
    (300, 2)
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & _SEVEN_BITS) << shift
        if byte < MORE:
            return value, position
        shift += 7


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while number > _SEVEN_BITS:
        out.append(number & _SEVEN_BITS | MORE)
        number >>= 7
    out.append(number)
    return bytes(out)
