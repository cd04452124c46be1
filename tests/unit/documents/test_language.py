"""The delta language: text, numbers, order, conditions, builders, and input that means harm."""

import pickle
import uuid
from collections.abc import Callable

import pytest

from siltstone.documents.language import (
    UNDEFINED,
    Condition,
    Delta,
    Json,
    Value,
    parse_condition,
    parse_delta,
    parse_deltas,
    value_text,
)
from siltstone.documents.language.parser import parse_by_grammar
from siltstone.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.", "1.0"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("1e7", "1.0E7"),
        ("9999999.5", "9999999.5"),
        ("35000000000.0", "3.5E10"),
        ("0.001", "0.001"),
        ("0.00012", "1.2E-4"),
        ("-5e-324", "-5.0E-324"),
        ("5.9604644775390625e-08", "5.960464477539063E-8"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9.223372036854776E18"),
        ("-9223372036854775809", "-9.223372036854776E18"),
        ("18446744073709551615", "1.8446744073709552E19"),
        ("1" * 300, "1.1111111111111112E299"),
        ('"\\x\\/\\"\\u00e9\\ud83d\\ude00"', '"x/\\"é😀"'),
        ('"\\u001f\\u007f\\b"', '"\\u001F\x7f\\b"'),
        ("\x00\x1f[1 ,\t2]\n", "[1,2]"),
        ("(..)", "(..)"),
        ("(2,1)", "(1,2)"),
        ("()?", "()?"),
        ("(..,1)?", "(..,1)?"),
        ("(~1,2)", "(2,~1)"),
        ("(5.0,5,0.0,0,-0.0)", "(-0.0,0,0.0,5,5.0)"),
        ("([9],[10],[])", "([10],[9],[])"),
        ('("\uffff","😀","a")', '("a","😀","\uffff")'),
        ('{"\uffff":1,"😀":2,"~z":3,"~a":4,"A":5}', '{"~a":4,"~z":3,"A":5,"😀":2,"\uffff":1}'),
        ('{..,"b":~,"a":..}', '{..,"a":..,"b":~}'),
        ('{"a":if + then 1 else 2 end}?', '{"a":if + then 1 else 2 end}'),
        ('{"a":if + then 1 end}?', '{"a":if + then 1 end}?'),
        ('{..,"a":(..)}?', '{..,"a":(..)}'),
        ('{..,"a":(..)?}?', '{..,"a":(..)?}?'),
        ('{"a":()?}', "{}"),
        ("if{..}then(1)else{}end", "if {..} then (1) else {} end"),
        ("if alwaysFalse() then 1 elif ~ then 2 elif alwaysTrue() then 3 else 4 end", "if ~ then 2 else 3 end"),
        ("if alwaysFalse() then 1 end", ".."),
        ("if in() then 1 end", ".."),
        ("if 1 then ~ else if 2 then .. else 3 end end", "if 1 then ~ elif 2 then .. else 3 end"),
    ],
)
def test_deltas_print_in_one_way_only(text: str, canonical: str) -> None:
    delta = parse_delta(text)
    assert str(delta) == canonical
    assert str(parse_by_grammar(text)) == canonical
    assert parse_delta(canonical) == delta
    assert hash(parse_delta(canonical)) == hash(delta)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("is(null)", "null"),
        ("is(undefined)", "~"),
        ("is( defined )", "+"),
        ("in(true,1,null)", "in(1,null,true)"),
        ("in(1,1)", "1"),
        ("in(5,5.0)", "in(5,5.0)"),
        ("or()", "alwaysFalse()"),
        ("and()", "alwaysTrue()"),
        ("or(~)", "~"),
        ("and(not(not(+)))", "+"),
        ("and(and(1,2),alwaysTrue())", "and(and(1,2),alwaysTrue())"),
        ("or(~,1,or(in(2,3),is(num)),1)", "or(in(1,2,3),~,is(num))"),
        ("or(1,alwaysTrue())", "alwaysTrue()"),
        ("or(alwaysFalse(),1)", "1"),
        (
            'or(gt(1),intrinsic("~table":"t"),intrinsic("~id":"b"),2,intrinsic("~table":"s"))',
            'or(2,intrinsic("~table":in("s","t")),intrinsic("~id":"b"),gt(1))',
        ),
        ('intrinsic("~id":"b","a")', 'intrinsic("~id":in("a","b"))'),
        ('intrinsic("~id":gt("b"),"a")', 'intrinsic("~id":or("a",gt("b")))'),
        ("partition(4:3,1)", "partition(4:in(1,3))"),
        ("containsAny()", "alwaysTrue()"),
        ("containsAll( )", "alwaysTrue()"),
        ("containsOnly()", "containsOnly()"),
        ("containsAll(1)", "contains(1)"),
        ("containsAny(2,1,1)", "containsAny(1,2)"),
        ("containsOnly(1)", "containsOnly(1)"),
        ('like("abc")', '"abc"'),
        ('like("a\\\\*")', '"a*"'),
        ('like("**")', "is(string)"),
        ('like("a**\\\\*b\\\\c*")', 'like("a*\\\\*bc*")'),
        ('{"b":1,"a":2}', '{"a":2,"b":1}'),
        ("{}", "{}"),
        ('{..,"b":1,"~a":~}', '{..,"~a":~,"b":1}'),
    ],
)
def test_conditions_are_simplified_and_print_in_one_way_only(text: str, canonical: str) -> None:
    assert str(parse_condition(text)) == canonical
    assert str(parse_condition(canonical)) == canonical


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ("5", 5.0, False),
        ("true", 1, False),
        ("1", True, False),
        ("0.0", -0.0, False),
        ("[1,2]", [2, 1], False),
        ('{"a":1,"b":2}', {"b": 2, "a": 1}, True),
        ("null", UNDEFINED, False),
        ("not(null)", UNDEFINED, True),
        ("+", None, True),
        ("is(num)", True, False),
        ("in()", None, False),
        ("in(1,2)", UNDEFINED, False),
        ("gt(9007199254740992.0)", 9007199254740993, True),
        ("ge(0)", -0.0, False),
        ("lt(5)", "4", False),
        ("lt(5)", None, False),
        ("lt(5)", UNDEFINED, False),
        ("lt(5)", True, False),
        ('lt("\uffff")', "😀", True),
        ("contains(1)", [1.0], False),
        ("containsOnly(1,2)", [2, 1, 1], True),
        ("containsOnly(1,2)", [1, 2, 3], False),
        ("containsOnly()", [], True),
        ("containsAll(1,2)", {"1": 2}, False),
        ("containsAny()", UNDEFINED, True),
        ('like("a*a")', "a", False),
        ('like("a*a")', "aa", True),
        ('like("*ab*bc*")', "abc", False),
        ('like("*ab*bc*")', "abbc", True),
        ('like("a*b*b")', "ab", False),
        ('{..,"a":~}', {}, True),
        ('{..,"a":~}', [], False),
        ("{..}", {"a": 1}, True),
        ("and(is(num),or(lt(0),gt(9)))", 10, True),
    ],
)
def test_conditions_hold(condition: str, value: Value, holds: bool) -> None:
    assert parse_condition(condition).matches(value) is holds


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "line 1, column 1", "expected a delta, found the end"),
        ("{..,}", "line 1, column 5", "expected a key in double quotes, found }"),
        ("{'a':1}", "line 1, column 2", "expected a key in double quotes, found '"),
        ('{"a" 1}', "line 1, column 6", "expected ':', found 1"),
        ('{"a":1\n "b":2}', "line 2, column 2", "expected ',' or '}', found \""),
        ('{"a":1,"a":2}', "line 1, column 8", 'the key "a" occurs twice'),
        ('{"a":1} {}', "line 1, column 9", "expected nothing more, found {"),
        ('{"a":1} ?', "line 1, column 9", "expected nothing more, found ?"),
        ("[1,]", "line 1, column 4", "expected a JSON value, found ]"),
        ("(5,~5)", "line 1, column 5", "the member 5 occurs twice"),
        ("+1", "line 1, column 1", "expected a delta, found +1"),
        (".001", "line 1, column 2", "expected '..', found 0"),
        ("007", "line 1, column 1", "expected a delta, found 007"),
        ("0x1p3", "line 1, column 1", "expected a delta, found 0x1p3"),
        ("-.5", "line 1, column 1", "expected a delta, found -.5"),
        ("1d", "line 1, column 1", "expected a delta, found 1d"),
        ("NaN", "line 1, column 1", "expected a delta, found NaN"),
        ("[-1e999]", "line 1, column 2", "expected a number that fits into 64 bits, found -1e999"),
        ("True", "line 1, column 1", "expected a delta, found True"),
        ('"a\tb"', "line 1, column 3", "expected a control character to be written as an escape"),
        ('"a\\\tb"', "line 1, column 4", "expected a character after the backslash"),
        ('"a\\', "line 1, column 4", "expected a character after the backslash, found the end"),
        ('"\\u12g4"', "line 1, column 4", "expected four hexadecimal digits"),
        ('"\\ud800x"', "line 1, column 2", "expected both halves of a surrogate pair"),
        ('"\\ud800\\u0041"', "line 1, column 2", "expected both halves of a surrogate pair"),
        ('"\\udc00"', "line 1, column 2", "expected both halves of a surrogate pair"),
        ('"\ud800"', "line 1, column 2", "halves of surrogate pairs"),
        ("if 1 the ~ end", "line 1, column 6", "expected then, found the"),
        ("if 1 then ~", "line 1, column 12", "expected elif, else or end, found the end"),
        ("if 1 then~end", "line 1, column 6", "expected then, found then~end"),
        ("if foo(1) then ~ end", "line 1, column 4", "expected a condition, found foo"),
        ("if gt(null) then ~ end", "line 1, column 4", "gt(null): only numbers and strings have an order"),
        ('if like("a\\\\") then ~ end', "line 1, column 4", "the last backslash escapes nothing"),
        ('if intrinsic("~tags":1) then ~ end', "line 1, column 4", "no condition on that is possible"),
        ("if partition(0:1) then ~ end", "line 1, column 4", "the number of partitions is from 1"),
        ("if partition(4:5) then ~ end", "line 1, column 4", "5 is not a partition"),
        ("if partition(4:1.0) then ~ end", "line 1, column 4", "1.0 is not a partition"),
        ("if partition(x:1) then ~ end", "line 1, column 14", "expected the number of partitions, found x"),
        ("if partition(4:contains(1)) then ~ end", "line 1, column 4", "asks nothing about a number"),
        ("if is(number) then ~ end", "line 1, column 7", "expected one of undefined"),
        ("if not() then ~ end", "line 1, column 8", "expected a condition, found )"),
        ("if alwaysTrue(1) then ~ end", "line 1, column 15", "expected ')', found 1"),
    ],
)
def test_errors_point_at_the_character(text: str, place: str, reason: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse_delta(text)
    told = str(raised.value)
    assert told.startswith(f"delta, {place}: ")
    assert reason in told
    assert "<HERE>" in told
    assert "\n" not in told


def test_errors_show_the_text_around_and_not_a_megabyte() -> None:
    text = '{"a":"' + "x" * 1_000_000 + '",,' + "y" * 1_000_000
    with pytest.raises(InvalidInputError) as raised:
        parse_delta(text)
    assert str(raised.value).endswith("in …" + "x" * 22 + '",<HERE>,' + "y" * 23 + "…")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("read", [parse_delta, parse_condition, parse_deltas])
def test_what_is_no_text_is_refused(read: Callable[[object], object]) -> None:
    with pytest.raises(InvalidInputError, match="is text, not"):
        read(b"{}")


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        ("[" * 1_000_000, False),
        ("[" * 100_000 + "]" * 100_000, False),
        ('{"a":' * 100_000, False),
        ('{..,"a":' * 100_000, False),
        ("if not(" * 50_000, False),
        ("if " * 100_000, False),
        ("if " + "not(" * 100_000, False),
        ("if " + "or(" * 100_000, False),
        ("if + then " * 100_000, False),
        ("if " + '{..,"a":' * 100_000, False),
        ("(" * 100_000, False),
        ("9" * 1_000_000, False),
        ("0." + "1" * 1_000_000, True),
        ("1e" + "9" * 100_000, False),
        ('"' + "\\" * 1_000_001, False),
        ('"' + "\\u0041" * 200_000 + '"', True),
        ('"' + "\\x" * 500_000 + '"', True),
        (" " * 2_000_000 + "1", True),
        ("{" + ",".join(f'"{each}":{{..,"a":1}}' for each in range(20_000)) + "}", True),
        ("{" + ",".join(f'"{each}":1' for each in range(100_000)) + ',"0":1}', False),
        ("(" + ",".join(map(str, range(50_000))) + ")", True),
        ("(" + ",".join(map(str, range(50_000))) + ",0)", False),
        ("if 1 then 2 " + "elif 1 then 2 " * 20_000 + "end", True),
        ("if or(" + ",".join(f"gt({each})" for each in range(20_000)) + ") then 2 end", True),
        ('if like("' + "a*" * 100_000 + '") then 2 end', True),
        ("[" + "[1]," * 100_000 + "1]", True),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_hostile_text_ends_in_a_delta_or_a_clear_error_and_never_in_a_hang(text: str, is_good: bool) -> None:
    # What grows with the square of its length would take hours here.
    if is_good:
        delta = parse_delta(text)
        assert str(parse_delta(str(delta))) == str(delta)
        delta.apply({"a": "a" * 1000})
    else:
        with pytest.raises(InvalidInputError, match=r"line 1, column \d+"):
            parse_delta(text)


def test_a_pattern_of_many_pieces_does_not_try_them_all_in_all_places() -> None:
    condition = parse_condition('like("' + "*a" * 2000 + '*b")')
    assert not condition.matches("a" * 100_000)


@pytest.mark.parametrize("kind", ["map", "list", "conditional", "condition", "map condition"])
def test_the_deepest_that_is_allowed_is_read_printed_applied_and_pickled(kind: str) -> None:
    depth = 198
    if kind == "map":
        text = '{..,"a":' * depth + "~" + "}" * depth
    elif kind == "list":
        text = "[" * depth + "]" * depth
    elif kind == "conditional":
        text = "if + then " * depth + "~" + " end" * depth
    elif kind == "condition":
        text = "if " + "and(" * depth + "1" + ",+)" * depth + " then 2 end"
    else:
        text = "if " + '{..,"a":' * depth + "1" + "}" * depth + " then 2 end"
    delta = parse_delta(text)
    assert str(delta) == text
    assert pickle.loads(pickle.dumps(delta)) == delta
    value: Json = 1
    for _ in range(depth):
        value = {"a": value}
    result = delta.apply(value)
    if result is not UNDEFINED:
        assert value_text(result)


def test_deltas_cannot_be_changed() -> None:
    delta, condition = parse_delta('{..,"a":1}'), parse_condition("gt(1)")
    for thing in (delta, condition):
        with pytest.raises(AttributeError, match="cannot be changed"):
            thing.bound = 2
    assert (repr(delta), repr(condition)) == ('<delta {..,"a":1}>', "<condition gt(1)>")


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (Delta.literal({"b": (1, 2.0), "a": None}), '{"a":null,"b":[1,2.0]}'),
        (Delta.map().put("n", 1).remove("old").build(), '{..,"n":1,"old":~}'),
        (Delta.map().put_all({"b": 1, "a": [True]}).retain("c").remove_rest().build(), '{"a":[true],"b":1,"c":..}'),
        (Delta.map().remove("a", "b").delete_if_empty().build(), '{..,"a":~,"b":~}?'),
        (Delta.map().put("a", 1).remove_rest().delete_if_empty().build(), '{"a":1}'),
        (Delta.map().put_if_absent("a", 1).build(), '{..,"a":if ~ then 1 end}'),
        (Delta.map().remove_if("a", 1).build(), '{..,"a":if 1 then ~ end}'),
        (Delta.map().update("a", Delta.set().add("x").remove("y")).build(), '{..,"a":(..,"x",~"y")}'),
        (Delta.map().update_if_exists("a", Delta.map().put("b", 1)).build(), '{..,"a":if + then {..,"b":1} end}'),
        (Delta.set().add(2, 1).remove_rest().delete_if_empty().build(), "(1,2)?"),
        (
            Delta.conditional().when(Condition.map({"n": Condition.ge(1)}), {"n": 0}).otherwise(Delta.delete()).build(),
            'if {..,"n":ge(1)} then {"n":0} else ~ end',
        ),
        (Delta.conditional().when(Condition.always(True), Delta.noop()).build(), ".."),
        (
            Delta.conditional().when(1, 2).when(Condition.always(False), 3).when(4, 5).build(),
            "if 1 then 2 elif 4 then 5 end",
        ),
    ],
    ids=str,
)
def test_builders_print_what_one_would_write(built: Delta, text: str) -> None:
    assert str(built) == text
    assert parse_delta(text) == built


@pytest.mark.parametrize(
    ("built", "text"),
    [
        (Condition.equals([1]), "[1]"),
        (Condition.is_in(2, 1), "in(1,2)"),
        (Condition.is_a("null"), "null"),
        (Condition.is_a("defined"), "+"),
        (Condition.gt(1), "gt(1)"),
        (Condition.lt("a"), 'lt("a")'),
        (Condition.le(1.0), "le(1.0)"),
        (Condition.contains(1), "contains(1)"),
        (Condition.contains_any(1, 2), "containsAny(1,2)"),
        (Condition.contains_all(1, 2), "containsAll(1,2)"),
        (Condition.contains_only(), "containsOnly()"),
        (Condition.like("a*"), 'like("a*")'),
        (Condition.negate(Condition.negate(1)), "1"),
        (Condition.all_of(1, Condition.is_a("num")), "and(1,is(num))"),
        (Condition.any_of(1, 2), "in(1,2)"),
        (Condition.intrinsic("~id", "a", "b"), 'intrinsic("~id":in("a","b"))'),
        (Condition.partition(4, 1), "partition(4:1)"),
    ],
    ids=str,
)
def test_conditions_are_built_as_they_are_written(built: Condition, text: str) -> None:
    assert str(built) == text
    assert parse_condition(text) == built
    assert pickle.loads(pickle.dumps(built)) == built


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Delta.literal({1: 2}), "1 is not a key|an integer of 1 bits is not a key"),
        (lambda: Delta.literal(float("nan")), "not a JSON number"),
        (lambda: Delta.literal(1 << 63), "does not fit into 64 bits"),
        (lambda: Delta.literal(10**10000), "does not fit into 64 bits"),
        (lambda: Delta.literal("\ud800"), "half of a surrogate pair"),
        (lambda: Delta.literal({"\ud800": 1}), "half of a surrogate pair"),
        (lambda: Delta.literal(b"x"), "not a JSON value"),
        (lambda: Delta.literal({"a": {1, 2}}), "not a JSON value"),
        (lambda: Delta.map().put("a", 1).remove("a"), "'a' occurs twice"),
        (lambda: Delta.map().put(1, 1), "not a key of a map; use a string"),  # type: ignore[arg-type]
        (lambda: Delta.set().add(1).remove(1).build(), "1 occurs twice"),
        (lambda: Condition.is_a("number"), "use undefined"),
        (lambda: Condition.gt([1]), "have an order"),
        (lambda: Condition.intrinsic("~version", 1), "use one of ~id"),
    ],
)
def test_builders_refuse_what_is_no_json(build: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        build()


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidInputError, match="200 levels"):
        Delta.literal(endless)


def test_what_is_built_does_not_follow_later_changes_of_its_parts() -> None:
    tags = ["x"]
    delta = Delta.literal({"tags": tags})
    tags.append("y")
    assert str(delta) == '{"tags":["x"]}'


def test_conditions_on_a_document_need_one() -> None:
    delta = parse_delta('if intrinsic("~id":"a") then {} end')
    with pytest.raises(InvalidInputError, match="apply the delta to a document"):
        delta.apply({})


def test_any_set_delta_sorts() -> None:
    assert parse_delta("(..)").apply(["b", "a", "b"]) == ["a", "b"]
    assert parse_delta('{..,"s":(..,5.0)}').apply({"s": [5, 5]}) == {"s": [5, 5.0]}
    result = parse_delta("(..,~5)").apply([5.0, 5])
    assert (result, type(result[0])) == ([5.0], float)  # type: ignore[index]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("and(gt(1),lt(5))", "and(lt(5),gt(1))"),
        ("or(gt(5),lt(1))", "or(lt(1),gt(5))"),
        ("or(gt(5),and(+,is(num)))", "or(and(is(num),+),gt(5))"),
        ('not({..,"a":and(gt(1),lt(5))})', 'not({..,"a":and(lt(5),gt(1))})'),
        ('intrinsic("~id":or(gt("a"),lt("c")))', 'intrinsic("~id":or(lt("c"),gt("a")))'),
        ("partition(9:and(gt(1),lt(5)))", "partition(9:and(lt(5),gt(1)))"),
    ],
)
def test_equal_conditions_are_equal_in_whatever_order_they_are_written(one: str, other: str) -> None:
    first, second = parse_condition(one), parse_condition(other)
    assert first == second
    assert hash(first) == hash(second)
    assert (str(first), str(second)) == (one, other), "the text keeps the order"
    deltas = [parse_delta(f'{{..,"k":if {each} then ~ end}}') for each in (one, other)]
    assert deltas[0] == deltas[1]
    assert len(set(deltas)) == 1
    assert parse_condition("and(gt(1),gt(1))") != parse_condition("and(gt(1),lt(1))")
    assert parse_condition("and(gt(1),lt(5))") != parse_condition("or(gt(1),lt(5))")


@pytest.mark.parametrize(
    ("bound", "value", "holding"),
    [
        ("0.0", -0.0, "lt le"),
        ("0", -0.0, "lt le"),
        ("-0.0", 0.0, "gt ge"),
        ("-0.0", 0, "gt ge"),
        ("-0.0", -0.0, "ge le"),
        ("0.0", 0, "ge le"),
        ("0", 0.0, "ge le"),
        ("-0.0", -1, "lt le"),
        ("-0.0", 5e-324, "gt ge"),
    ],
)
def test_negative_zero_is_less_than_zero(bound: str, value: float, holding: str) -> None:
    names = [name for name in ("gt", "ge", "lt", "le") if parse_condition(f"{name}({bound})").matches(value)]
    assert sorted(names) == sorted(holding.split())


def test_zeros_are_equal_only_to_themselves() -> None:
    zeros = {"0": 0, "0.0": 0.0, "-0.0": -0.0}
    for text, zero in zeros.items():
        for form in ("{}", "in({},7)"):
            condition = parse_condition(form.format(text))
            assert [condition.matches(value) for value in zeros.values()] == [value is zero for value in zeros.values()]
        found = parse_condition(f"contains({text})")
        assert [found.matches([value]) for value in zeros.values()] == [value is zero for value in zeros.values()]


def test_a_uuid_is_its_text() -> None:
    id_ = uuid.UUID("febb5880-2c64-11e4-8000-000000000000")
    assert str(Delta.literal({"id": id_, "all": [id_]})) == f'{{"all":["{id_}"],"id":"{id_}"}}'
    assert str(Condition.equals(id_)) == f'"{id_}"'
