"""The transactional producers of one incarnation: each id is in the group's log before it is used (H7, H8)."""

import logging
from collections.abc import Callable
from typing import Final

from tidewheel.rebalance.protocol.orders import (
    AnyOrder,
    EndIncarnation,
    UseTransactionalId,
    WantTransactionalId,
)
from tidewheel.tasks.errors import FencedError
from tidewheel.tasks.loop.worker_ports import Membership
from tidewheel.tasks.ports import Clock, ProducerOfId, TransactionalProducer

_log = logging.getLogger(__name__)

#: How long the group may take to log another id; an incarnation that gets none has no way to commit.
_LIMIT_S: Final = 30.0
_ASK_AGAIN_S: Final = 1.0
_LOOK_S: Final = 0.005


class GroupProducers:
    """Makes the producers of an incarnation; a `ProducerFactory`.

    Each id is initialised before the group hears of it, and never again: whoever fences it comes later, and nothing takes
    that back. The group's word only permits its use.

    Args:
        membership: Where further ids are asked for.
        make: Makes the producer of an id.
        first_id: The id that the group has on record from the beginning.
        first: Its producer, initialised before the group heard of it; None makes it here.
        clock: Time.
        wait: Waits for some seconds.

    Attributes:
        early: Orders that came while this waited for an id; `GroupOrders` serves them first.
    """

    def __init__(
        self,
        membership: Membership,
        make: ProducerOfId,
        first_id: str,
        clock: Clock,
        wait: Callable[[float], None],
        first: TransactionalProducer | None = None,
    ) -> None:
        self._membership = membership
        self._make = make
        self._first_id = first_id
        self._first = first
        self._clock = clock
        self._wait = wait
        self._made = 0
        self.early: list[AnyOrder] = []

    def __call__(self) -> TransactionalProducer:
        """Return the next producer, initialised; raises `FencedError` if the group does not permit its id."""
        number = self._made
        if number == 0:
            producer = self._first or started(self._make(self._first_id))
            self._made = 1
            return producer
        own_id = f"{self._first_id.removesuffix('-0')}-{number}"
        producer = started(self._make(own_id))
        self._made += 1  # only now: an id that could not be initialised, because no broker was there, is tried again
        try:
            permitted = self._id_of(number)
        except BaseException:
            producer.close()
            raise
        assert permitted == own_id, "the member names ids as the worker does"
        return producer

    def _id_of(self, number: int) -> str:
        begin_s = self._clock.monotonic_s()
        ask_s = begin_s
        while (now_s := self._clock.monotonic_s()) < begin_s + _LIMIT_S:
            if now_s >= ask_s:
                self._membership.say(WantTransactionalId(number=number))
                ask_s = now_s + _ASK_AGAIN_S
            self._membership.progress()
            found = self._look(number)
            if found is not None:
                _log.info("the group has given transactional id %s", found)
                return found
            self._wait(_LOOK_S)
        raise FencedError(
            f"the group has not given this worker another transactional id within {_LIMIT_S:.0f} s; it can't commit any "
            "more, and joins again as a new one"
        )

    def _look(self, number: int) -> str | None:
        """Return the id, if it has come; other orders wait."""
        found: str | None = None
        for order in self._membership.take():
            match order:
                case UseTransactionalId():
                    found = order.transactional_id if order.number == number else found
                case EndIncarnation():
                    raise ended(order)
                case _:
                    self.early.append(order)
        return found


def started(producer: TransactionalProducer) -> TransactionalProducer:
    """Return a producer when it is initialised; closes it if it can't be."""
    try:
        producer.init()
    except BaseException:
        producer.close()
        raise
    return producer


def ended(order: EndIncarnation) -> FencedError:
    """Return the error that the end of an incarnation is."""
    return FencedError(order.reason, final=order.final, code=order.code)
