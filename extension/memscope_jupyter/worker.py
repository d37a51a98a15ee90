"""One thread for long work: what is asked for last goes first, and what can wait gives way to it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

Work = Callable[[], None]

_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


class Stopped(BaseException):
    """Ends a job that nobody waits for any more; no `except Exception` on the way may hold it up."""


class Worker:
    """Runs one job at a time.

    XLA can't be stopped while it compiles, so a job ends at its next call of `checkpoint`; until then the next
    one waits, and everybody else goes on.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._asked: tuple[Work, Future[None]] | None = None
        self._spare: Callable[[], bool] | None = None
        self._running = False
        self._in_spare_time = False
        self._stopped = False
        self._held = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, work: Work) -> Future[None]:
        """Does this next; what runs and what was asked for before are given up. Once closed, nothing is done."""
        future: Future[None] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._give_up()
            self._asked = work, future
            self._wake()
        return future

    def when_idle(self, work: Callable[[], bool] | None) -> None:
        """What to do while nothing is asked for: called again and again until it returns False, also after a stop."""
        with self._changed:
            self._spare = work
            self._wake()

    def hold(self) -> None:
        """Does nothing in its spare time until `go_on`; what was begun ends at its next checkpoint."""
        with self._changed:
            self._held = True
            self._stopped = self._stopped or (self._running and self._in_spare_time)

    def go_on(self) -> None:
        """Works in its spare time again."""
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Gives up what runs, what was asked for, and what is done when idle."""
        with self._changed:
            self._give_up()
            self._spare = None

    def close(self) -> None:
        """Stops for good; the thread ends as soon as what runs lets it."""
        with self._changed:
            self._give_up()
            self._spare = None
            self._closed = True
            self._changed.notify_all()

    def checkpoint(self) -> None:
        """Called by a job as it goes along; raises Stopped where it has been given up."""
        if self._stopped and threading.current_thread() is self._thread:
            raise Stopped

    def join(self) -> None:
        """Waits until the thread of a closed worker has ended."""
        if self._thread is not None:
            self._thread.join()

    @property
    def winding_up(self) -> bool:
        """True while a job that was given up still runs."""
        return self._running and self._stopped

    def _give_up(self) -> None:
        self._stopped = self._running
        if self._asked is not None:
            self._asked[1].cancel()
            self._asked = None

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
            _workers.add(self)
        self._changed.notify_all()

    def _work(self) -> None:
        while self._take():
            pass

    def _take(self) -> bool:
        """Waits for one thing to do, and does it; False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._asked is not None or self._may_use_spare_time)
            if self._closed:
                return False
            asked, self._asked = self._asked, None
            self._running, self._stopped, self._in_spare_time = True, False, asked is None
            spare = self._spare
        try:
            if asked is not None:
                _run(*asked)
            elif spare is not None and not _more(spare):
                self._forget(spare)
        finally:
            with self._changed:
                self._running = False
        return True

    @property
    def _may_use_spare_time(self) -> bool:
        return self._spare is not None and not self._held

    def _forget(self, spare: Callable[[], bool]) -> None:
        with self._changed:
            if self._spare is spare:
                self._spare = None


def _run(work: Work, future: Future[None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as error:  # it belongs to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(None)


def _more(spare: Callable[[], bool]) -> bool:
    """Whether there is more to do; a stop is no end, as the work is there still."""
    try:
        return spare()
    except Stopped:
        return True


@atexit.register
def _end_all() -> None:
    """Python must not end while XLA compiles on a thread: that aborts the process."""
    left = list(_workers)
    for worker in left:
        worker.close()
    for worker in left:
        worker.join()
