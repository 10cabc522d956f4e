"""Transactional producers of one incarnation; the group logs each id before its first use."""

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
from tidewheel.tasks.kafka.ports import Clock, ProducerOfId, TransactionalProducer
from tidewheel.tasks.loop.worker_ports import Membership

_log = logging.getLogger(__name__)

#: Seconds for the group to log another transactional id; without one a worker can't commit.
_LIMIT_S: Final = 30.0
_REPEAT_S: Final = 1.0
_POLL_S: Final = 0.005


class GroupProducers:
    """Factory of the transactional producers of one incarnation.

    A producer initialises its id once, before the group logs it. Others fence only logged ids, so a
    fence always comes later and lasts.

    Args:
        first_id: Id that the group log has from the start.
        first: Its producer, initialised before the group knew it; None makes it here.

    Attributes:
        early: Orders received while waiting for an id; `GroupOrders` serves them first.
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
        self._producers = 0
        self.early: list[AnyOrder] = []

    def __call__(self) -> TransactionalProducer:
        """Return the next producer, initialised; raise `FencedError` if its id is not permitted."""
        number = self._producers
        if number == 0:
            producer = self._first or started(self._make(self._first_id))
            self._producers = 1
            return producer
        transactional_id = f"{self._first_id.removesuffix('-0')}-{number}"
        producer = started(self._make(transactional_id))
        self._producers += 1  # only after success: an id that no broker initialised is tried again
        try:
            permitted = self._id_of(number)
        except BaseException:
            producer.close()
            raise
        assert permitted == transactional_id, "the member names ids as the worker does"
        return producer

    def _id_of(self, number: int) -> str:
        begin_s = self._clock.monotonic_s()
        send_s = begin_s
        while (now_s := self._clock.monotonic_s()) < begin_s + _LIMIT_S:
            if now_s >= send_s:
                self._membership.send(WantTransactionalId(number=number))
                send_s = now_s + _REPEAT_S
            self._membership.progress()
            transactional_id = self._find_id(number)
            if transactional_id is not None:
                _log.info("the group has given transactional id %s", transactional_id)
                return transactional_id
            self._wait(_POLL_S)
        raise FencedError(
            f"the group has not given this worker another transactional id within {_LIMIT_S:.0f} s; it can't commit any "
            "more, and joins again as a new one"
        )

    def _find_id(self, number: int) -> str | None:
        """Return the id if an order permits its use; keep other orders in `early`."""
        transactional_id: str | None = None
        for order in self._membership.receive_orders():
            match order:
                case UseTransactionalId():
                    transactional_id = (
                        order.transactional_id if order.number == number else transactional_id
                    )
                case EndIncarnation():
                    raise ended(order)
                case _:
                    self.early.append(order)
        return transactional_id


def started(producer: TransactionalProducer) -> TransactionalProducer:
    """Return an initialised producer; close it if the initialisation fails."""
    try:
        producer.init()
    except BaseException:
        producer.close()
        raise
    return producer


def ended(order: EndIncarnation) -> FencedError:
    return FencedError(order.reason, final=order.final, code=order.code)
