"""A thread that works until it is told to stop, and whose failure is raised by whoever looks after it."""

import threading
from abc import abstractmethod


class WatchedThread(threading.Thread):
    """A daemon thread around `work`.

    Attributes:
        error: What ended it before its time, None as long as all is well.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._ending = threading.Event()

    @abstractmethod
    def work(self) -> None:
        """Do what it is for, until `_ending` is set."""

    def run(self) -> None:
        """Work, and keep what goes wrong."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised again by check() and stop()
            self.error = error

    def check(self) -> None:
        """Raise what went wrong so far."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Tell it to stop and wait for it, if it was started; raises what went wrong."""
        self._ending.set()
        if self.ident is not None:
            self.join()
        self.check()
