"""What a Python worker of Spark does once, before its first task."""

import gc


def settle() -> None:
    """Spare the modules imported so far from garbage collection.

    Spark collects garbage after every task; looking through all of pandas and pyarrow each time would take longer than
    a small task itself.
    """
    if not gc.get_freeze_count():
        gc.freeze()
