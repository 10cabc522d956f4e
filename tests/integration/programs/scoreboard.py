"""Numbers that a process leaves behind however it ends: a file that both sides map into memory.

What a process wrote into a shared mapping is in the kernel's page cache at once, so SIGKILL loses nothing of it. A
number is written before its name, and eight aligned bytes are written at once, so nothing is ever read in halves.
"""

import mmap
from pathlib import Path
from typing import Final

_CELLS: Final = 256
_NAME_BYTES: Final = 120
_CELL_BYTES: Final = _NAME_BYTES + 8
_CELL_WORDS: Final = _CELL_BYTES // 8


class Scoreboard:
    """Named whole numbers, written by one thread of one process, read by anybody."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_CELLS * _CELL_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._words = memoryview(self._map).cast("q")
        self._index: dict[str, int] = {}

    def __setitem__(self, name: str, value: int) -> None:
        cell = self._index.get(name)
        if cell is None:
            cell = self._index[name] = len(self._index)
            assert cell < _CELLS, "the scoreboard is full"
            data = name.encode()
            assert len(data) < _NAME_BYTES, f"too long for the scoreboard: {name}"
            self._words[cell * _CELL_WORDS + _NAME_BYTES // 8] = value
            begin = cell * _CELL_BYTES
            self._map[begin : begin + len(data)] = data
        self._words[cell * _CELL_WORDS + _NAME_BYTES // 8] = value

    def add(self, name: str, value: int = 1) -> None:
        """Add to a number of this writer's own."""
        cell = self._index.get(name)
        before = 0 if cell is None else self._words[cell * _CELL_WORDS + _NAME_BYTES // 8]
        self[name] = before + value

    def read(self) -> dict[str, int]:
        """Return all numbers as they are now."""
        numbers: dict[str, int] = {}
        for cell in range(_CELLS):
            begin = cell * _CELL_BYTES
            name = self._map[begin : begin + _NAME_BYTES].rstrip(b"\0")
            if not name:
                break
            numbers[name.decode()] = self._words[cell * _CELL_WORDS + _NAME_BYTES // 8]
        return numbers

    def close(self) -> None:
        """Let go of the mapping."""
        self._words.release()
        self._map.close()
