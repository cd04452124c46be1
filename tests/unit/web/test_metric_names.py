"""Names, types and units of the metrics follow the conventions of Prometheus, by the rules that its linter has."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.web.serving import Service, exposition

# What the help begins with or has in it, and what the name of such a metric ends with, but for `_total`.
UNITS = (
    ("seconds since 1970", "_timestamp_seconds"),
    ("How long", "_seconds"),
    ("How far", "_seconds"),
    ("Bytes of", "_bytes"),
    (" for each ", "_ratio"),
)
OTHER_UNITS = re.compile(
    r"_(ms|milliseconds|us|minutes|hours|days|kb|mb|gb|kilobytes|megabytes|percent|ages?|since)(_|$)"
)
RESERVED = ("_count", "_sum", "_bucket", "_created")


def problems(text: str) -> list[str]:
    """Return what is against the conventions in a text that Prometheus scrapes."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    found = [f"{name}: no help" for name in types if not helps.get(name)]
    found += [f"{name}: no type" for name in helps if name not in types]
    declared = re.findall(r"^# TYPE (\S+)", text, re.M)
    found += [f"{name}: declared twice" for name in types if declared.count(name) > 1]
    for name, kind in types.items():
        base, about = name.removesuffix("_total"), helps.get(name, "")
        if not re.fullmatch(r"siltstone(_[a-z0-9]+)+", name):
            found.append(f"{name}: not words in lower case after the prefix siltstone")
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name}: counters end in _total, and nothing else does")
        if kind not in ("histogram", "summary") and name.endswith(RESERVED):
            found.append(f"{name}: ends like a part of a histogram")
        if kind in name.split("_"):
            found.append(f"{name}: has its type in its name")
        if OTHER_UNITS.search(name):
            found.append(f"{name}: not in seconds or bytes, or an age in place of a time")
        found += [
            f"{name}: {about!r} has a unit, {end}" for text, end in UNITS if text in about and not base.endswith(end)
        ]
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name not in types:
                found.append(f"{sample.name}: a sample without a type")
            found += [
                f"{sample.name}: label {each}" for each in sample.labels if not re.fullmatch("[a-z]+(_[a-z]+)*", each)
            ]
    return found


def test_metrics_follow_the_conventions(service: Service) -> None:
    text = exposition(service)
    assert problems(text) == []
    assert text.count("# TYPE") > 30
    assert 'siltstone_build_info{version="' in text


def test_what_is_against_the_conventions_is_found() -> None:
    text = """
# HELP siltstone_cycleAge_ms How long a cycle ran.
# TYPE siltstone_cycleAge_ms gauge
siltstone_cycleAge_ms{Table="a"} 1
# HELP siltstone_rows Rows.
# TYPE siltstone_rows counter
siltstone_rows 1
# TYPE siltstone:gauge_count gauge
siltstone:gauge_count 2
""".lstrip()
    told = "\n".join(problems(text))
    for expected in (
        "siltstone_cycleAge_ms: not words in lower case",
        "siltstone_cycleAge_ms: not in seconds or bytes",
        "has a unit, _seconds",
        "siltstone_cycleAge_ms: label Table",
        "siltstone_rows: counters end in _total",
        "siltstone:gauge_count: no help",
        "siltstone:gauge_count: not words in lower case",
        "siltstone:gauge_count: ends like a part of a histogram",
    ):
        assert expected in told
