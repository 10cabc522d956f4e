"""The screen of `tidewheel top`: a window on a group's lines, moved and sorted by keys."""

import os
import select
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from rich.console import Group
from rich.text import Text

from tidewheel.streams.cli.group_view import SORTS, alarm_lines, body_lines, head_lines
from tidewheel.streams.group.status import GroupStatus

_SORTS: Final = tuple(SORTS)
#: Escape sequences of keys that have no character.
_SEQUENCES: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
    "\x1b[5~": "page up",
    "b": "page up",
    "\x1b[6~": "page down",
    " ": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "g": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "G": "end",
    "s": "sort",
    "r": "reverse",
    "q": "quit",
    "Q": "quit",
}
_ALARMS_SHOWN: Final = 3
_KEY_BYTES: Final = 64

#: Returns the next key's name within some seconds, else "".
ReadKey = Callable[[float], str]


class LiveView:
    """Lines of the last status, cut to the terminal's size."""

    def __init__(self) -> None:
        self.status: GroupStatus | None = None
        self.problem = ""
        self.sort = _SORTS[0]
        self.is_reversed = False
        self._top = 0
        #: Rows of the last window, and its last possible first line.
        self._rows = 1
        self._last_top = 0

    def press(self, key: str) -> None:
        """Move or sort; unknown keys do nothing."""
        match key:
            case "sort":
                self.sort = _SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)]
                self._top = 0
            case "reverse":
                self.is_reversed = not self.is_reversed
            case "home":
                self._top = 0
            case "end":
                self._top = self._last_top
            case _:
                steps = {
                    "up": -1,
                    "down": 1,
                    "page up": -self._rows,
                    "page down": self._rows,
                }
                self._top = max(min(self._top + steps.get(key, 0), self._last_top), 0)

    def screen(self, width: int, height: int) -> Group:
        """Return exactly `height` lines, none wider than `width`."""
        head, body = self._head(width), self._body(width)
        self._rows = max(height - len(head) - 1, 1)
        self._last_top = max(len(body) - self._rows, 0)
        self._top = min(self._top, self._last_top)
        window = body[self._top : self._top + self._rows]
        lines = [*head, *window]
        lines += [Text()] * (height - 1 - len(lines))
        lines = [*lines[: height - 1], self._keys(width, len(body), len(window))]
        for line in lines:
            line.no_wrap = True
            line.truncate(width, overflow="ellipsis")
        return Group(*lines)

    def _head(self, width: int) -> list[Text]:
        lines = [Text(f"! can't be read: {self.problem}", style="red")] if self.problem else []
        if self.status is None:
            return lines
        alarms = alarm_lines(self.status)
        more = len(alarms) - _ALARMS_SHOWN
        if more > 0:
            hidden = Text(f"! {more} more: `tidewheel status` shows them", style="red")
            alarms = [*alarms[:_ALARMS_SHOWN], hidden]
        return [*lines, *head_lines(self.status, width), *alarms]

    def _body(self, width: int) -> list[Text]:
        if self.status is None:
            return []
        lines = body_lines(self.status, width, sort=self.sort, reverse=self.is_reversed)
        return lines[1:]  # the first is empty

    def _keys(self, width: int, total: int, shown: int) -> Text:
        order = f"{self.sort} reversed" if self.is_reversed else self.sort
        place = f"  {self._top + 1}-{self._top + shown} of {total}" if total > shown else ""
        line = Text(
            f"q quit  ↑↓ scroll  s sort: {order}  r reverse{place}", style="dim", no_wrap=True
        )
        line.truncate(width, overflow="ellipsis")
        return line


@contextmanager
def terminal_keys() -> Generator[ReadKey | None]:
    """Read single keys from the terminal in the block; yield None where that is impossible."""
    try:
        import termios  # noqa: PLC0415 - missing on some systems; there Ctrl-C ends the command
        import tty  # noqa: PLC0415 - likewise
    except ImportError:
        yield None
        return
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _key_reader(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _key_reader(descriptor: int) -> ReadKey:
    waiting: list[str] = []

    def read(seconds: float) -> str:
        if not waiting:
            ready, _, _ = select.select([descriptor], [], [], seconds)
            if not ready:
                return ""
            waiting.extend(keys_of(os.read(descriptor, _KEY_BYTES).decode(errors="replace")))
        return waiting.pop(0) if waiting else ""

    return read


def keys_of(text: str) -> list[str]:
    r"""Return the names of typed keys; others are left out.

    >>> keys_of("j\x1b[6~xq")
    ['down', 'page down', 'quit']
    """
    keys: list[str] = []
    while text:
        found = next((sequence for sequence in _SEQUENCES if text.startswith(sequence)), "")
        if found:
            keys.append(_SEQUENCES[found])
        text = text[len(found) or 1 :]
    return keys


def wait_with_keys(read_key: ReadKey | None, seconds: float, on_key: Callable[[str], None]) -> bool:
    """Wait, passing keys on; return True once the user quits."""
    if read_key is None:
        time.sleep(seconds)
        return False
    deadline_s = time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        key = read_key(left_s)
        if key == "quit":
            return True
        if key:
            on_key(key)
    return False
