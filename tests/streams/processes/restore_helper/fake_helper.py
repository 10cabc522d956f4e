"""Fake restore helper: `python -m tests.streams.processes.restore_helper.fake_helper`.

The store name of an order selects the behaviour.
"""

import os
import socket
import sys

from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.processes.restore_helper.helper_messages import (
    Failed,
    FindSnapshot,
    Forget,
    MakeRuns,
    Order,
    Progressed,
    Report,
    RunsCreated,
    SnapshotFound,
    decode_begin,
    decode_order,
    encode,
)


def answers(order: Order, told: int) -> list[Report]:
    match order:
        case FindSnapshot():
            return [SnapshotFound(number=order.number, snapshot=None)]
        case Forget():
            return []
        case MakeRuns():
            pass
    if order.shape.name == "die":
        os._exit(3)
    if order.shape.name == "wait":
        return [Progressed(number=order.number, position=1, records=1)]
    if order.shape.name == "fail":
        return [Failed(number=order.number, reason="as asked")]
    return [RunsCreated(number=order.number, files=(), time=StoreTime(), records=told)]


def main() -> None:
    line = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with line.makefile("rb") as lines:
        begin = decode_begin(next(lines))
        for each in lines:
            for report in answers(decode_order(each), begin.run_bytes):
                line.sendall(encode(report))


if __name__ == "__main__":
    main()
