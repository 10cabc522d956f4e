"""Ports of this machine's loopback address: which are free, and which to use."""

import socket

from tidewheel.streams.broker.wire import split_address

HOST = "127.0.0.1"
"""The only address the development broker listens on: it has no passwords."""


def choose_ports(port: int | None, last: tuple[int, int] | None) -> tuple[int, int]:
    """Ports for clients and for the controller: the given one, else the last ones, else free ones.

    Args:
        port: The one the user wants for clients.
        last: Those of the last start on the same data; taken again if they are free.
    """
    # Held open together, so that the two are never the same.
    with socket.socket() as first, socket.socket() as second:
        first.bind((HOST, 0))
        second.bind((HOST, 0))
        for_clients, for_controller = int(first.getsockname()[1]), int(second.getsockname()[1])
    if last is not None and is_free(last[0]):
        for_clients = last[0]
    if port is not None:
        for_clients = port
    if last is not None and last[1] != for_clients and is_free(last[1]):
        for_controller = last[1]
    return for_clients, for_controller


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        # As Java does: a port that only has old connections winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def is_listening(address: str) -> bool:
    """Whether someone accepts connections at `host:port`."""
    try:
        with socket.create_connection(split_address(address), timeout=1):
            return True
    except OSError:
        return False
