"""Numbers in a memory-mapped file that survive the writer's death by SIGKILL.

The number is written before its name, and its eight aligned bytes in one step. So readers never see
half a number.
"""

import mmap
from pathlib import Path
from typing import Final

_CELLS: Final = 4_096
_NAME_BYTES: Final = 120
_CELL_BYTES: Final = _NAME_BYTES + 8
_CELL_WORDS: Final = _CELL_BYTES // 8


class Scoreboard:
    """Named integers, written by one thread of one process, read by any process."""

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
        cell = self._index.get(name)
        before = 0 if cell is None else self._words[cell * _CELL_WORDS + _NAME_BYTES // 8]
        self[name] = before + value

    def read(self) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for cell in range(_CELLS):
            begin = cell * _CELL_BYTES
            name = self._map[begin : begin + _NAME_BYTES].rstrip(b"\0")
            if not name:
                break
            numbers[name.decode()] = self._words[cell * _CELL_WORDS + _NAME_BYTES // 8]
        return numbers

    def close(self) -> None:
        self._words.release()
        self._map.close()
