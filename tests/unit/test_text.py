"""Values as people read them."""

import pytest

from siltstone.text import (
    format_age,
    format_bytes,
    format_count,
    format_duration,
    format_iso_time,
    format_ratio,
    format_time,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (123_456, "123 kB"),
        (999_999, "1.0 MB"),
        (10**15, "1.0 PB"),
        (10**19, "10000 PB"),
    ],
)
def test_sizes_have_about_three_digits(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_times_are_in_utc() -> None:
    assert format_time(0) == "1970-01-01 00:00:00"
    assert format_time(1_700_000_000_999) == "2023-11-14 22:13:20"


def test_times_for_programs_have_milliseconds() -> None:
    assert format_iso_time(1_700_000_000_999) == "2023-11-14T22:13:20.999Z"


def test_durations_have_two_units() -> None:
    written = [format_duration(ms) for ms in (-1, 0, 999, 1000, 59_999, 60_000, 3_600_000, 100_000_000)]
    assert written == ["0 ms", "0 ms", "999 ms", "1.0 s", "60.0 s", "1 min 0 s", "1 h 0 min", "1 d 3 h"]


def test_a_smaller_unit_of_zero_can_be_left_out() -> None:
    written = [format_duration(ms, drop_zero=True) for ms in (-5, 59_900, 60_000, 61_000, 3_600_000, 90_000_000)]
    assert written == ["0 ms", "59.9 s", "1 min", "1 min 1 s", "1 h", "1 d 1 h"]


def test_ages_have_one_unit() -> None:
    assert [format_age(ms) for ms in (-1, 0, 61_000, 7_300_000, 10**9)] == ["0 s", "0 s", "1 min", "2 h", "11 d"]


def test_counts_and_ratios() -> None:
    assert [format_count(count, "row") for count in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert format_count(2, "index", "indices") == "2 indices"
    assert format_ratio(1.254) == "1.25\N{MULTIPLICATION SIGN}"
