"""Conditions: what a conditional delta asks about the value that it applies to. Immutable; made already simplified."""

from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from siltstone.documents.language.values import Intrinsics, Json, Value, checked


class Condition:
    """A question about a value. The static methods make conditions; where they take one, a plain value means equality.

    The text of a condition is canonical, but for the order inside `and(…)` and `or(…)`, which stays as it was written.
    Conditions are equal if their texts are, whatever that order.
    """

    __slots__ = ()

    def matches(self, value: Value, intrinsics: Intrinsics | None = None) -> bool:
        """Return whether a value meets the condition. Raises: InvalidInputError where it needs intrinsics and has none."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def sorted_text(self) -> str:
        """Return the text with everything inside `and(…)` and `or(…)` in one order: the same for equal conditions."""
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and self.sorted_text() == other.sorted_text()

    def __hash__(self) -> int:
        return hash(self.sorted_text())

    def __repr__(self) -> str:
        return f"<condition {self}>"

    def __reduce__(self) -> tuple[Callable[[str], "Condition"], tuple[str]]:
        return Condition.parse, (str(self),)

    @staticmethod
    def parse(text: str) -> "Condition":
        """Read a condition from text. Raises: InvalidInputError."""
        from siltstone.documents.language.parser import parse_condition

        return parse_condition(text)

    @staticmethod
    def always(answer: bool) -> "Condition":
        """Ask nothing."""
        from siltstone.documents.language import questions

        return questions.ALWAYS if answer else questions.NEVER

    @staticmethod
    def equals(value: object) -> "Condition":
        """Ask for strict equality: 5 is not 5.0."""
        from siltstone.documents.language import questions

        return questions.as_condition(value)

    @staticmethod
    def is_in(*values: object) -> "Condition":
        """Ask whether the value strictly equals one of these."""
        from siltstone.documents.language import questions

        return questions.one_of(_all_checked(values))

    @staticmethod
    def is_a(state: str) -> "Condition":
        """Ask for undefined, defined, null, bool, num, string, array or object. Raises: InvalidInputError."""
        from siltstone.documents.language import questions

        return questions.is_a(state)

    @staticmethod
    def gt(bound: object) -> "Condition":
        """Ask for more than a number or a string."""
        from siltstone.documents.language import questions

        return questions.Comparison("gt", checked(bound))

    @staticmethod
    def ge(bound: object) -> "Condition":
        """Ask for at least a number or a string."""
        from siltstone.documents.language import questions

        return questions.Comparison("ge", checked(bound))

    @staticmethod
    def lt(bound: object) -> "Condition":
        """Ask for less than a number or a string."""
        from siltstone.documents.language import questions

        return questions.Comparison("lt", checked(bound))

    @staticmethod
    def le(bound: object) -> "Condition":
        """Ask for at most a number or a string."""
        from siltstone.documents.language import questions

        return questions.Comparison("le", checked(bound))

    @staticmethod
    def contains(value: object) -> "Condition":
        """Ask for a list with this value."""
        from siltstone.documents.language import questions

        return questions.containing("Any", [checked(value)])

    @staticmethod
    def contains_any(*values: object) -> "Condition":
        """Ask for a list with at least one of these; true of everything without any."""
        from siltstone.documents.language import questions

        return questions.containing("Any", _all_checked(values))

    @staticmethod
    def contains_all(*values: object) -> "Condition":
        """Ask for a list with all of these; true of everything without any."""
        from siltstone.documents.language import questions

        return questions.containing("All", _all_checked(values))

    @staticmethod
    def contains_only(*values: object) -> "Condition":
        """Ask for a list with these and no others."""
        from siltstone.documents.language import questions

        return questions.containing("Only", _all_checked(values))

    @staticmethod
    def like(pattern: str) -> "Condition":
        r"""Ask for a string of this pattern: `*` stands for anything, `\` before a character for itself."""
        from siltstone.documents.language import questions

        return questions.like(str(checked(pattern)))

    @staticmethod
    def negate(condition: object) -> "Condition":
        """Ask for the opposite."""
        from siltstone.documents.language import questions

        return questions.negate(questions.as_condition(condition))

    @staticmethod
    def all_of(*conditions: object) -> "Condition":
        """Ask for all of these."""
        from siltstone.documents.language import questions

        return questions.all_of([questions.as_condition(condition) for condition in conditions])

    @staticmethod
    def any_of(*conditions: object) -> "Condition":
        """Ask for one of these at least."""
        from siltstone.documents.language import questions

        return questions.any_of([questions.as_condition(condition) for condition in conditions])

    @staticmethod
    def map(entries: Mapping[str, object]) -> "Condition":
        """Ask for a map whose values are like this; other keys may be there."""
        from siltstone.documents.language import questions

        return questions.MapCondition(
            {str(checked(key)): questions.as_condition(condition) for key, condition in entries.items()}
        )

    @staticmethod
    def intrinsic(name: str, *conditions: object) -> "Condition":
        """Ask about `~id`, `~deleted` and the like: whether one of the conditions is so. Raises: InvalidInputError."""
        from siltstone.documents.language import questions

        return questions.Intrinsic(name, Condition.any_of(*conditions))

    @staticmethod
    def partition(count: int, *conditions: object) -> "Condition":
        """Ask in which of `count` partitions the document is. Raises: InvalidInputError."""
        from siltstone.documents.language import questions

        return questions.Partition(count, Condition.any_of(*conditions))


def _all_checked(values: Iterable[object]) -> list[Json]:
    return [checked(value) for value in values]
