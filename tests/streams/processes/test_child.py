"""Lines over a socket pair, however they are cut."""

import socket

from tidewheel.streams.processes.child import LineReader


def test_lines_are_put_together_from_pieces() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader = LineReader(ours)
    with ours, theirs:
        assert reader.read() == ([], False)
        theirs.sendall(b"fir")
        assert reader.read() == ([], False)
        theirs.sendall(b"st\nsecond\nthi")
        assert reader.read() == ([b"first", b"second"], False)
        theirs.sendall(b"rd\n")
        theirs.close()
        assert reader.read() == ([b"third"], True)
        assert reader.read() == ([], True)
