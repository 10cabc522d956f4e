"""History of the dashboard: episodes of the group's log as text and as marks on a time line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final

from tidewheel.rebalance.inspect.describe import duration_text
from tidewheel.rebalance.inspect.history import Episode, Move, episode_text, move_text
from tidewheel.rebalance.model import MemberPhase
from tidewheel.streams.group.alarms import Alarm

#: Lines and marks of one episode; `tidewheel group history` has all of them.
_LINES_MAX: Final = 200
_MARKS_MAX: Final = 300
#: Task names in the text of a mark.
_TASKS_MAX: Final = 8
_ALARMS_MAX: Final = 100
#: Phases of a member that is there, or will be.
_CAME: Final = frozenset({MemberPhase.JOINING, MemberPhase.ACTIVE})
#: Moves to one member less than this apart are one mark.
_TOGETHER_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event on the time line; times in ms since the epoch.

    Attributes:
        kind: "came" or "went" of a member, "moved" of tasks, or "decided" by the leader.
        lane: Name of a member for people, or "": the group.
        since_ms: Start of the copy that became the owner's state, or None.
    """

    at_ms: int
    kind: str
    lane: str
    text: str
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEpisode:
    """Episode of a group; `ended_ms` is None while it lasts."""

    text: str
    began_ms: int
    ended_ms: int | None
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSpan:
    """An alarm from its first to its last poll; `ended_ms` is None while it lasts."""

    name: str
    text: str
    began_ms: int
    ended_ms: int | None = None


class HistoryTexts:
    """Converts episodes; each ended one only once."""

    def __init__(self, when: Callable[[int], str]) -> None:
        self._when = when
        self._ended: dict[int, HistoryEpisode] = {}

    def read(self, episodes: Sequence[Episode]) -> tuple[HistoryEpisode, ...]:
        shown = {
            episode.first_offset: self._ended.get(episode.first_offset)
            or _history_episode(episode, self._when)
            for episode in episodes
        }
        self._ended = {
            offset: episode for offset, episode in shown.items() if episode.ended_ms is not None
        }
        return tuple(shown.values())


def _history_episode(episode: Episode, when: Callable[[int], str]) -> HistoryEpisode:
    lines = episode_text(episode, when).splitlines()
    more = len(lines) - _LINES_MAX
    if more > 0:
        lines = [*lines[:_LINES_MAX], f"  … {more} more lines: tidewheel group history"]
    return HistoryEpisode(
        text="\n".join(lines),
        began_ms=episode.began_ms,
        ended_ms=episode.ended_ms,
        marks=_limited(_marks(episode)),
    )


def _marks(episode: Episode) -> Iterator[Mark]:
    for event in episode.happenings:
        kind = "decided"
        if event.phase:
            kind = "came" if event.phase in _CAME else "went"
        yield Mark(at_ms=event.timestamp_ms, kind=kind, lane=event.member, text=event.text)
    by_target = sorted(episode.moves, key=lambda move: (move.target, move.granted_ms))
    for target, moves in groupby(by_target, key=attrgetter("target", "target_name")):
        for together in _together(moves):
            starts = [move.planted_ms for move in together if move.planted_ms is not None]
            yield Mark(
                at_ms=together[-1].granted_ms,
                kind="moved",
                lane=target[1] or target[0],
                text=_moves_text(together),
                since_ms=min(starts, default=None),
            )


def _together(moves: Iterable[Move]) -> Iterator[list[Move]]:
    together: list[Move] = []
    for move in moves:
        if together and move.granted_ms - together[0].granted_ms >= _TOGETHER_MS:
            yield together
            together = []
        together.append(move)
    yield together


def _moves_text(moves: Sequence[Move]) -> str:
    if len(moves) == 1:
        return move_text(moves[0])
    names = ", ".join(move.task for move in moves[:_TASKS_MAX])
    more = f" and {len(moves) - _TASKS_MAX} more" if len(moves) > _TASKS_MAX else ""
    pauses = [move.pause_ms for move in moves if move.pause_ms is not None]
    pause = f", at most {duration_text(max(pauses))} without an owner" if pauses else ""
    target = moves[0].target_name or moves[0].target
    return f"{len(moves)} tasks → {target}: {names}{more}{pause}"


def _limited(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    ordered = sorted(marks, key=attrgetter("at_ms"))
    more = len(ordered) - _MARKS_MAX
    if more <= 0:
        return tuple(ordered)
    rest = Mark(
        at_ms=ordered[-1].at_ms, kind="decided", lane="",
        text=f"{more} more events: tidewheel group history",
    )  # fmt: skip
    return (*ordered[:_MARKS_MAX], rest)


class AlarmHistory:
    """Alarms by name since the first poll: the group's log has none."""

    def __init__(self) -> None:
        self._spans: list[AlarmSpan] = []

    def add(self, alarms: Sequence[Alarm], at_ms: int) -> tuple[AlarmSpan, ...]:
        """Return the spans after a poll at `at_ms`, the oldest first."""
        texts = {alarm.name: alarm.text for alarm in reversed(alarms)}
        spans: list[AlarmSpan] = []
        for span in self._spans:
            if span.ended_ms is None:
                text = texts.pop(span.name, None)
                spans.append(
                    AlarmSpan(
                        name=span.name,
                        text=span.text if text is None else text,
                        began_ms=span.began_ms,
                        ended_ms=at_ms if text is None else None,
                    )
                )
            else:
                spans.append(span)
        spans += [AlarmSpan(name=name, text=text, began_ms=at_ms) for name, text in texts.items()]
        self._spans = spans[-_ALARMS_MAX:]
        return tuple(self._spans)
