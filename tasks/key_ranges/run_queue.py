"""For how long a thread could have run and waited for a processor: others used them, or the group's quota was used up.

Linux tells it in the second number of a thread's `schedstat`, in ns. Who reads a file in Python gives up the interpreter, and
beside threads that compute gets it back after some milliseconds. So the C library is called with the interpreter kept: the
system has the number at hand, and that takes 15 us (50 with cold caches), where `os.read` beside two threads that compute takes 1 ms.
"""

import ctypes
import os
import sys
from functools import cache

#: More than three numbers take.
_SIZE = 80


@cache
def _library() -> ctypes.PyDLL | None:
    """Return the C library, whose functions keep the interpreter; None where the system is not one that tells."""
    if sys.platform != "linux":
        return None
    library = ctypes.PyDLL(None)
    library.open.argtypes = (ctypes.c_char_p, ctypes.c_int)
    library.read.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    library.read.restype = ctypes.c_ssize_t
    return library


def waited_s(native_id: int) -> float | None:
    """Return for how long a thread of this process has waited for a processor; None if the system does not tell, or the thread has ended."""
    library = _library()
    if library is None:
        return None
    path = f"/proc/self/task/{native_id}/schedstat".encode()
    descriptor: int = library.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    text = ctypes.create_string_buffer(_SIZE)
    size: int = library.read(descriptor, text, _SIZE)
    library.close(descriptor)
    return int(text.raw[:size].split()[1]) / 1e9 if size > 0 else None
