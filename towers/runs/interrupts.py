"""Ctrl-C, SIGTERM and SIGHUP, noted for a loop to look at between two steps."""

import signal
import threading


class Interrupts:
    """While entered, remembers the first SIGINT, SIGTERM or SIGHUP instead of acting on it.

    A second Ctrl-C acts at once; the first does not, whatever came before it: a checkpoint may be
    under way. SIGHUP stays ignored where it already is, as under nohup. Outside the main thread,
    where Python cannot handle signals, it remembers none.

    Attributes:
      received: the signal's number, or None.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.received: int | None = None
        self._before = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._before = {
            number: signal.signal(number, self._note)
            for number in self.SIGNALS
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def __exit__(self, *_):
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame) -> None:
        if self.received is None:
            self.received = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
