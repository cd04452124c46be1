"""A second, naive reading of the delta language, and strategies that draw deltas as plain tuples and write them down."""

import json
import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from siltstone.documents.language import UNDEFINED

KEYS = st.sampled_from(["a", "b", "c", "~x", "é", "\uffff", "😀", 'q"', ""])
NUMBERS = (
    st.sampled_from([0, 1, -1, 5, (1 << 63) - 1, -(1 << 63), 0.0, -0.0, 5.0, 2.5, 1e7, 1e-3, 9.99e-4, 1.5e300, 5e-324])
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.builds(math.ldexp, st.sampled_from([1.0, -1.0]), st.integers(-1074, 1023))
)
STRINGS = st.sampled_from(["", "a", "b", "ab", "aab", "*", "\\", "\uffff", "😀", "\x1f\n", "~"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=6
)
SCALARS = st.none() | st.booleans() | NUMBERS | STRINGS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
PATTERNS = st.lists(st.sampled_from(["*", "a", "b", "\\*", "\\\\", "😀"]), max_size=6).map("".join)
NAMES = st.sampled_from(["~id", "~deleted", "~signature"])


def _conditions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), several),
        st.tuples(st.just("or"), several),
        st.tuples(st.just("map"), st.dictionaries(KEYS, inner, max_size=3)),
        st.tuples(st.just("intrinsic"), NAMES, st.lists(inner, min_size=1, max_size=2)),
    )


CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(st.just("equal"), VALUES),
        st.tuples(st.just("in"), st.lists(VALUES, max_size=3)),
        st.tuples(st.just("constant"), st.booleans()),
        st.tuples(
            st.just("is"), st.sampled_from(["undefined", "defined", "null", "bool", "num", "string", "array", "object"])
        ),
        st.tuples(st.just("compare"), st.sampled_from(["gt", "ge", "lt", "le"]), NUMBERS | STRINGS),
        st.tuples(st.just("contains"), st.sampled_from(["Any", "All", "Only"]), st.lists(SCALARS, max_size=3)),
        st.tuples(st.just("like"), PATTERNS),
        st.tuples(st.just("partition"), st.just(4), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    ),
    _conditions,
    max_leaves=5,
)


@st.composite
def _sets(draw: st.DrawFn) -> Any:
    members = draw(st.lists(VALUES, max_size=4, unique_by=lambda value: repr(tagged(value))))
    cut = draw(st.integers(0, len(members)))
    return "set", draw(st.booleans()), members[:cut], members[cut:], draw(st.booleans())


DELTAS: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.tuples(st.just("literal"), VALUES), st.just(("delete",)), st.just(("noop",)), _sets()),
    lambda inner: (
        st.tuples(st.just("map"), st.booleans(), st.dictionaries(KEYS, inner, max_size=3), st.booleans())
        | st.tuples(st.just("if"), st.lists(st.tuples(CONDITIONS, inner), min_size=1, max_size=2), st.none() | inner)
    ),
    max_leaves=6,
)


class Known:
    """What conditions can ask about a document that is always the same."""

    def intrinsic(self, name: str) -> Any:
        return {"~id": "ab", "~deleted": False, "~signature": "00"}[name]

    def partition(self, count: int) -> int:
        return 3


KNOWN = Known()


def tagged(value: Any) -> Any:
    """A value with its types spelled out: equal by Python if and only if strictly equal."""
    if isinstance(value, dict):
        return "map", sorted((key, tagged(each)) for key, each in value.items())
    if isinstance(value, list):
        return "list", [tagged(each) for each in value]
    return type(value).__name__, repr(value)


def _order(value: Any) -> Any:
    if value is None:
        return 0, 0, 0
    if isinstance(value, bool):
        return 1, int(value), 0
    if isinstance(value, list | dict):
        return 2 if isinstance(value, list) else 3, units(written(value)), 0
    if isinstance(value, int | float):
        return 4, value, -1 if repr(value) == "-0.0" else int(isinstance(value, float))
    return 5, units(value), 0


def units(text: str) -> list[int]:
    """The UTF-16 code units of a text."""
    coded = text.encode("utf-16-le")
    return [coded[at] | coded[at + 1] << 8 for at in range(0, len(coded), 2)]


def written(value: Any) -> str:
    """Canonical text, the slow way."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (not key.startswith("~"), units(key)))
        return "{" + ",".join(written(key) + ":" + written(value[key]) for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, str):
        raw = json.dumps(value, ensure_ascii=False)
        return re.sub(r"(?<!\\)((?:\\\\)*)\\u([0-9a-f]{4})", lambda found: found[1] + "\\u" + found[2].upper(), raw)
    return java_double(value) if isinstance(value, float) else json.dumps(value)


def java_double(value: float) -> str:
    """A double in Java's form, with the fewest digits that read back equal; of those the nearest, or the even one of two."""
    if value == 0:
        return repr(value)
    exact = Decimal(value)
    sign = "-" if exact < 0 else ""
    shortest = next(near for count in range(1, 18) if (near := [n for n in _near(exact, count) if float(n) == value]))
    nearest = min(
        shortest, key=lambda number: (abs(Fraction(number) - Fraction(value)), number.as_tuple().digits[-1] % 2)
    )
    power, plain = nearest.adjusted(), "".join(map(str, nearest.as_tuple().digits)).rstrip("0")
    if -3 <= power < 7:
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{plain}"
        plain = plain.ljust(power + 2, "0")
        return f"{sign}{plain[: power + 1]}.{plain[power + 1 :]}"
    return f"{sign}{plain[0]}.{plain[1:] or '0'}E{power}"


def _near(exact: Decimal, digits: int) -> list[Decimal]:
    """The numbers of so many digits just below and above: near a power of two, only the farther one may read back."""
    return [Context(prec=digits, rounding=way).plus(exact) for way in (ROUND_FLOOR, ROUND_CEILING)]


def turned(written: Any) -> Any:
    """The same condition or delta, with all that is inside `and` and `or` written the other way round."""
    if isinstance(written, tuple) and written[0] in ("and", "or") and isinstance(written[1], list):
        return written[0], [turned(each) for each in written[1]][::-1]
    if isinstance(written, tuple) and written[0] not in ("equal", "in", "compare", "contains", "literal", "set"):
        return tuple(turned(each) for each in written)
    if isinstance(written, list):
        return [turned(each) for each in written]
    return {key: turned(each) for key, each in written.items()} if isinstance(written, dict) else written


def matches(condition: Any, value: Any) -> bool:
    kind, *rest = condition
    if kind == "equal":
        return value is not UNDEFINED and bool(tagged(rest[0]) == tagged(value))
    if kind == "in":
        return any(matches(("equal", each), value) for each in rest[0])
    if kind == "constant":
        return bool(rest[0])
    if kind == "is":
        types: dict[str, Any] = {"bool": bool, "string": str, "array": list, "object": dict, "null": type(None)}
        if rest[0] in ("undefined", "defined"):
            return bool((value is UNDEFINED) == (rest[0] == "undefined"))
        if rest[0] == "num":
            return isinstance(value, int | float) and not isinstance(value, bool)
        return bool(isinstance(value, types[rest[0]]))
    if kind == "compare":
        return _compares(rest[0], value, rest[1])
    if kind == "contains":
        return _contains(rest[0], rest[1], value)
    if kind == "like":
        parts = re.findall(r"\\.|\*|[^*\\]", rest[0], re.DOTALL)
        pattern = "".join(".*" if part == "*" else re.escape(part[-1]) for part in parts)
        return isinstance(value, str) and re.fullmatch(pattern, value, re.DOTALL) is not None
    if kind == "not":
        return not matches(rest[0], value)
    if kind in ("and", "or"):
        found = [matches(each, value) for each in rest[0]]
        return all(found) if kind == "and" else any(found)
    if kind == "map":
        return isinstance(value, dict) and all(
            matches(each, value.get(key, UNDEFINED)) for key, each in rest[0].items()
        )
    if kind == "intrinsic":
        return any(matches(each, KNOWN.intrinsic(rest[0])) for each in rest[1])
    return KNOWN.partition(rest[0]) in rest[1]


def _compares(name: str, value: Any, bound: Any) -> bool:
    if isinstance(bound, str):
        if not isinstance(value, str):
            return False
        one: Any = units(value)
        other: Any = units(bound)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return False
    else:
        one, other = [(each, -1 if repr(each) == "-0.0" else 0) for each in (value, bound)]
    return bool({"gt": one > other, "ge": one >= other, "lt": one < other, "le": one <= other}[name])


def _contains(kind: str, wanted: list[Any], value: Any) -> bool:
    if kind != "Only" and not wanted:
        return True
    if not isinstance(value, list):
        return False
    has = [tagged(each) for each in value]
    wants = [tagged(each) for each in wanted]
    if kind == "Any":
        return any(want in has for want in wants)
    return all(want in has for want in wants) and (kind == "All" or all(each in wants for each in has))


def apply(delta: Any, old: Any) -> Any:
    """What a delta makes of a value."""
    kind, *rest = delta
    if kind == "literal":
        return rest[0]
    if kind == "delete":
        return UNDEFINED
    if kind == "noop":
        return old
    if kind == "set":
        keeps, added, removed, deletes = rest
        members: list[Any] = []
        for each in [*added, *(old if keeps and isinstance(old, list) else [])]:
            if tagged(each) not in [tagged(member) for member in members]:
                members.append(each)
        members = [member for member in members if tagged(member) not in [tagged(gone) for gone in removed]]
        return sorted(members, key=_order) if members or not deletes else UNDEFINED
    if kind == "map":
        keeps, entries, deletes = rest
        before = old if isinstance(old, dict) else {}
        after = dict(before) if keeps else {}
        for key, inner in entries.items():
            result = apply(inner, before.get(key, UNDEFINED))
            after.pop(key, None)
            if result is not UNDEFINED:
                after[key] = result
        return after if after or not deletes else UNDEFINED
    branches, otherwise = rest
    for condition, then in branches:
        if matches(condition, old):
            return apply(then, old)
    return old if otherwise is None else apply(otherwise, old)


def condition_text(condition: Any) -> str:
    kind, *rest = condition
    if kind == "equal":
        return value_text(rest[0])
    if kind in ("in", "contains"):
        return f"{kind}{rest[0] if kind == 'contains' else ''}( {' , '.join(map(value_text, rest[-1]))} )"
    if kind == "constant":
        return "alwaysTrue()" if rest[0] else "alwaysFalse( )"
    if kind == "is":
        return str({"undefined": "~", "defined": "+"}.get(rest[0]) or f"is( {rest[0]} )")
    if kind == "compare":
        return f"{rest[0]}({value_text(rest[1])})"
    if kind == "like":
        return f"like({value_text(rest[0])})"
    if kind == "not":
        return f"not({condition_text(rest[0])})"
    if kind in ("and", "or"):
        return f"{kind}({','.join(map(condition_text, rest[0]))})"
    if kind == "map":
        entries = [f"{value_text(key)}: {condition_text(each)}" for key, each in rest[0].items()]
        return "{" + ", ".join(["..", *entries]) + "}"
    if kind == "intrinsic":
        return f"intrinsic({value_text(rest[0])}:{','.join(map(condition_text, rest[1]))})"
    return f"partition({rest[0]}:{','.join(map(str, rest[1]))})"


def delta_text(delta: Any) -> str:
    """Write a delta down, with blanks here and there."""
    kind, *rest = delta
    if kind == "literal":
        return value_text(rest[0])
    if kind in ("delete", "noop"):
        return "~" if kind == "delete" else ".."
    if kind == "set":
        keeps, added, removed, deletes = rest
        members = [*map(value_text, added), *("~" + value_text(each) for each in removed)]
        return f"( {', '.join(([' ..'] if keeps else []) + members)} )" + ("?" if deletes else "")
    if kind == "map":
        keeps, entries, deletes = rest
        parts = ([" .. "] if keeps else []) + [
            f"{value_text(key)} :{delta_text(each)}" for key, each in entries.items()
        ]
        return "{" + ",".join(parts) + "}" + ("?" if deletes else "")
    branches, otherwise = rest
    text = " elif ".join(f"{condition_text(condition)} then {delta_text(then)}" for condition, then in branches)
    return f"if {text}{'' if otherwise is None else ' else ' + delta_text(otherwise)} end"


def value_text(value: Any) -> str:
    """A value as JSON, with all but ASCII escaped."""
    return json.dumps(value)
