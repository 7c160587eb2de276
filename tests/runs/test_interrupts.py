"""Signals are remembered, answered between two steps, and handled as before afterwards."""

import signal

import pytest

from towers.runs import interrupts


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_remembered_and_its_handler_comes_back(number):
    before = signal.getsignal(number)
    with interrupts.Interrupts() as asked:
        signal.raise_signal(number)
        assert asked.received == number
    assert signal.getsignal(number) == before


def test_a_sighup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.Interrupts() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert asked.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_ctrl_c_acts_at_once_and_the_first_after_a_sigterm_does_not():
    """The checkpoint that the SIGTERM asked for may be under way."""
    with interrupts.Interrupts() as asked:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert asked.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
