"""Whatever is drawn, the delta language reads, prints and evaluates it as a naive second reading of it does."""

import pickle
import re
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siltstone.documents.language import (
    UNDEFINED,
    Delta,
    parse_condition,
    parse_delta,
    parse_deltas,
    parse_value,
    strictly_equal,
    value_text,
)
from siltstone.documents.language.parser import parse_by_grammar
from siltstone.documents.language.values import checked, in_order
from siltstone.errors import InvalidInputError
from tests.property import documents_reference as reference
from tests.property.documents_reference import CONDITIONS, DELTAS, KNOWN, VALUES, tagged

OLD = VALUES | st.just(UNDEFINED)


def same(one: Any, other: Any) -> bool:
    return bool(tagged(one) == tagged(other))


@settings(max_examples=200)
@given(DELTAS, OLD)
def test_a_delta_does_what_the_naive_reading_says(delta: Any, old: Any) -> None:
    before = repr(old)
    assert same(parse_delta(reference.delta_text(delta)).apply(old, KNOWN), reference.apply(delta, old))
    assert repr(old) == before, "values are never changed in place"


@settings(max_examples=120)
@given(CONDITIONS, OLD)
def test_a_condition_holds_where_the_naive_reading_says(condition: Any, value: Any) -> None:
    parsed = parse_condition(reference.condition_text(condition))
    assert parsed.matches(value, KNOWN) == reference.matches(condition, value)
    assert parse_condition(str(parsed)) == parsed
    assert str(parse_condition(str(parsed))) == str(parsed)


CLOSE_NUMBERS = st.sampled_from([0, 0.0, -0.0, 5, 5.0, -5, -5.0, 5e-324, -5e-324, (1 << 53) + 1, float(1 << 53)])


@settings(max_examples=200)
@given(st.sampled_from(["gt", "ge", "lt", "le"]), CLOSE_NUMBERS, CLOSE_NUMBERS)
def test_numbers_that_are_close_compare_as_the_naive_reading_says(name: str, bound: float, value: float) -> None:
    condition = ("compare", name, bound)
    parsed = parse_condition(reference.condition_text(condition))
    assert parsed.matches(value) == reference.matches(condition, value)


@settings(max_examples=150)
@given(CONDITIONS, DELTAS)
def test_the_order_inside_and_and_or_does_not_matter_to_equality(condition: Any, delta: Any) -> None:
    for parse, text, written in (
        (parse_condition, reference.condition_text, condition),
        (parse_delta, reference.delta_text, delta),
    ):
        one, other = parse(text(written)), parse(text(reference.turned(written)))
        assert one == other
        assert hash(one) == hash(other)


@settings(max_examples=120)
@given(DELTAS, OLD)
def test_canonical_text_reads_back_as_the_same_delta(delta: Any, old: Any) -> None:
    parsed = parse_delta(reference.delta_text(delta))
    again = parse_delta(str(parsed))
    assert str(again) == str(parsed)
    assert again == parsed
    assert same(again.apply(old, KNOWN), parsed.apply(old, KNOWN))
    copy = pickle.loads(pickle.dumps(parsed))
    assert copy == parsed
    if parsed.is_constant:
        assert same(parsed.apply(old), parsed.apply())
    if parsed.never_deletes:
        assert parsed.apply(old, KNOWN) is not UNDEFINED


@settings(max_examples=120)
@given(VALUES)
@example(2.0**-24)
@example(-(2.0**-25))
def test_values_are_written_as_the_naive_way_does_and_read_back(value: Any) -> None:
    text = value_text(value)
    assert text == reference.written(value)
    assert same(parse_value(text), value)
    assert same(orjson.loads(text), value), "canonical text of a value is JSON"
    assert str(Delta.literal(value)) == text


@settings(max_examples=120)
@given(VALUES, VALUES)
def test_strict_equality_is_equality_of_texts(one: Any, other: Any) -> None:
    assert strictly_equal(one, other) == same(one, other) == (value_text(one) == value_text(other))
    assert strictly_equal(one, checked(one))


@given(st.lists(VALUES, max_size=6))
def test_the_order_of_a_set_does_not_depend_on_the_order_it_is_given_in(values: list[Any]) -> None:
    assert [*map(value_text, in_order(values))] == [*map(value_text, in_order(values[::-1]))]


@settings(max_examples=60)
@given(st.lists(DELTAS, max_size=4))
def test_several_deltas_are_read_from_one_text(deltas: list[Any]) -> None:
    texts = [reference.delta_text(delta) for delta in deltas]
    expected = [parse_delta(text) for text in texts]
    assert parse_deltas("[" + " , ".join(texts) + "]") == expected
    if not texts or not texts[0].startswith("["):
        assert parse_deltas(" \n".join(texts)) == expected


PIECES = st.sampled_from(
    [
        *'{}[]()~?,:. "\\+-',
        "..",
        '"a"',
        '"a":1',
        '"a":1,',
        "{..,",
        '{..,"a":1}',
        "if ",
        " then ",
        " else ",
        "elif",
        " end",
        "in(",
        "not(",
        "like(",
        "is(num)",
        "intrinsic(",
        "partition(",
        '"~id"',
        "1e999",
        "0x1",
        "007",
        "1.",
        "-",
        "9223372036854775808",
        "18446744073709551616",
        "1" * 30,
        "\\u12",
        '"\\ud800"',
        '"\\ud83d\\ude00"',
        '"\\u003a"',
        "\x00",
        "\n",
        "\ud800",
        "é",
        "😀",
        "NaN",
        "null",
        "true",
    ]
)
SOUP = st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=20)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The text of a delta with a piece taken out, put in or doubled."""
    text = reference.delta_text(draw(DELTAS))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 4)))
    return text[:start] + draw(PIECES | st.just("") | st.just(text[start:end] * 2)) + text[end:]


def outcome(read: Any, text: str) -> str:
    try:
        return str(read(text))
    except InvalidInputError as error:
        told = str(error)
    assert re.search(r", line \d+, column \d+: .*<HERE>", told)
    return "error"


@settings(max_examples=700)
@given(SOUP | damaged())
def test_any_text_is_a_delta_or_a_clear_error_on_the_fast_way_and_on_the_slow_one(text: str) -> None:
    assert outcome(parse_delta, text) == outcome(parse_by_grammar, text)
    outcome(parse_condition, text)
    outcome(parse_deltas, text)
    outcome(parse_value, text)


JSON_NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)


@settings(max_examples=120)
@given(st.lists(JSON_NUMBERS, max_size=4), st.booleans())
def test_numbers_are_the_same_on_the_fast_way_and_on_the_slow_one(numbers: list[str], in_map: bool) -> None:
    parts = [f'"{place}":{text}' for place, text in enumerate(numbers)] if in_map else numbers
    text = ("{" if in_map else "[") + ", ".join(parts) + ("}" if in_map else "]")
    assert outcome(parse_delta, text) == outcome(parse_by_grammar, text)
    assert outcome(parse_delta, text.replace("{", "{..,")) == outcome(parse_by_grammar, text.replace("{", "{..,"))


MEMBERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", ":", "\\u003a", "\\u003A", "a:b"]), st.integers(0, 2)), max_size=4
)


@given(MEMBERS, MEMBERS)
def test_no_key_is_dropped_silently(outer: list[tuple[str, int]], inner: list[tuple[str, int]]) -> None:
    nested = "{" + ",".join(f'"{key}":{value}' for key, value in inner) + "}"
    text = "{" + ",".join([*(f'"{key}":"{value}:"' for key, value in outer), f'"z":{nested}']) + "}"
    has_twice = any(
        len({key.lower().replace("\\u003a", ":") for key, _ in each}) < len(each) for each in (outer, inner)
    )
    for shown in (text, text.replace("{", "{..,", 1)):
        if has_twice:
            with pytest.raises(InvalidInputError, match="occurs twice"):
                parse_delta(shown)
        else:
            parse_delta(shown)


@settings(max_examples=60)
@given(
    st.integers(195, 205),
    st.lists(st.sampled_from(["[]", "{}"]), min_size=1, max_size=3),
    st.sampled_from(["[]", "{}", "[1]", "[9007199254740993]"]),
)
def test_depth_is_counted_alike_on_the_fast_way_and_on_the_slow_one(depth: int, kinds: list[str], inner: str) -> None:
    text = inner
    for level in range(depth - 1):
        text = f"[{text}]" if kinds[level % len(kinds)] == "[]" else '{"a":' + text + "}"
    if depth <= 200:
        assert str(parse_delta(text)) == str(parse_by_grammar(text)) == text
        return
    for read in (parse_delta, parse_by_grammar, parse_value, parse_condition):
        with pytest.raises(InvalidInputError, match="200 levels"):
            read(text)
