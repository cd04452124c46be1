"""That no Ctrl-C is lost: one that comes just before a command begins to wait would be noticed only when the wait ends."""

import os
import signal
import threading
import time

# After a signal: by then, the main thread has noticed it, or waits.
_PAUSES = (0.1, 0.3, 1.0, 3.0)
# It means nothing to anybody here; that it is handled is what ends a wait.
_NUDGE = signal.SIGURG


def heed_interrupts() -> None:
    """End whatever the main thread waits for, a little after a signal has come, so that it notices the signal."""
    if threading.current_thread() is not threading.main_thread():
        return
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.signal(_NUDGE, lambda number, frame: None)
    # Python writes the number of a signal here at once, whatever the main thread does.
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=_nudge, args=[signals, threading.get_ident()], daemon=True).start()


def _nudge(signals: int, main_thread: int) -> None:
    while True:
        if signal.SIGINT not in os.read(signals, 512):
            continue
        for pause in _PAUSES:
            time.sleep(pause)
            signal.pthread_kill(main_thread, _NUDGE)
