"""A stoppable thread that keeps its error for its owner."""

import threading
from abc import abstractmethod


class WatchedThread(threading.Thread):
    """A daemon thread around `work`; `error` is the exception that ended it."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._ending = threading.Event()

    @abstractmethod
    def work(self) -> None:
        pass

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - raised again by check() and stop()
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop a started thread and wait for it; raise its error."""
        self._ending.set()
        if self.ident is not None:
            self.join()
        self.check()
