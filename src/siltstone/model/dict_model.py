"""Dict models: declared like dataclasses, stored as plain dictionaries.

A model *is* a `dict` whose keys are its field names, so `json`, `pickle` and Spark's serializer take it as it is.
Reading an attribute reads the key; assigning one checks the value first; `to_serializable` and
`from_serializable` check the whole. Keys that no field declares survive every round trip.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, dataclass_transform

from siltstone.errors import InvalidInputError

_REQUIRED: Any = object()
_NOTHING = (type(None),)
_PLAIN_TYPES = (bool, int, float, str, *_NOTHING)
_Check = Callable[[Any, str], Any]
"""Returns a value as a hint wants it, or raises InvalidInputError, saying where it does not fit."""


class _Field:
    """A descriptor that reads and writes one key of the dictionary."""

    def __init__(self, default: Any, factory: Any = None, check: Any = None) -> None:
        self.required = default is _REQUIRED and factory is None
        self.default = factory or (lambda: default)
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    @functools.cached_property
    def _hint(self) -> Any:
        return typing.get_type_hints(self.owner)[self.name]

    @functools.cached_property
    def _conform(self) -> _Check:
        return _check_of(self._hint)

    @functools.cached_property
    def _fitting(self) -> frozenset[type]:
        """Types of which any value fits the hint."""
        union = typing.get_origin(self._hint) in (typing.Union, types.UnionType)
        hints = typing.get_args(self._hint) if union else (self._hint,)
        return frozenset(hint for hint in hints if hint in _PLAIN_TYPES)

    @functools.cached_property
    def plain(self) -> frozenset[type]:
        """Types of which any value is right as it is: most values of models are numbers, and there are millions of them."""
        return self._fitting if self._check is None else self._fitting & frozenset(_NOTHING)

    def conform(self, model: str, value: Any) -> Any:
        if type(value) not in self._fitting:
            value = self._conform(value, f"{model}.{self.name}")
        return value if self._check is None or value is None else self._check(value)

    def __get__(self, model: "Model | None", owner: type) -> Any:
        if model is None:
            return self
        try:
            return model[self.name]
        except KeyError:
            if self.required:
                raise InvalidInputError(f"{type(model).__name__}.{self.name} is not set") from None
            return self.default()

    def __set__(self, model: "Model", value: Any) -> None:
        model[self.name] = self.conform(type(model).__name__, value)


def field(*, default: Any = _REQUIRED, default_factory: Any = None, check: Any = None) -> Any:
    """Declare a default and a check; `check(value)` returns the value to store or raises."""
    return _Field(default, default_factory, check)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Model(dict[str, Any]):
    """A dictionary with declared, typed fields."""

    _fields: ClassVar[dict[str, _Field]] = {}

    def __init_subclass__(cls) -> None:
        fields = dict(cls._fields)
        for name in inspect.get_annotations(cls):
            if name.startswith("_"):
                continue
            declared = cls.__dict__.get(name, _REQUIRED)
            if not isinstance(declared, _Field):
                declared = _Field(declared)
                declared.__set_name__(cls, name)
                setattr(cls, name, declared)
            fields[name] = declared
        cls._fields = fields

    def __init__(self, **values: Any) -> None:
        kind, count = type(self).__name__, 0
        for name, spec in self._fields.items():
            if name in values:
                value = values[name]
                self[name] = value if type(value) in spec.plain else spec.conform(kind, value)
                count += 1
            elif spec.required:
                raise self._misnamed(values)
            else:
                self[name] = spec.default()
        if count < len(values):
            raise self._misnamed(values)
        self.validate()

    def _misnamed(self, values: dict[str, Any]) -> InvalidInputError:
        """Return the error of values that are missing, or else of those that no field has."""
        missing = [name for name, spec in self._fields.items() if spec.required and name not in values]
        unknown = [name for name in values if name not in self._fields]
        names = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(unknown)}"
        return InvalidInputError(f"{type(self).__name__}: {names}")

    def replaced(self, **values: Any) -> Self:
        """Return a copy with other values in some fields; the others have been checked. Raises: InvalidInputError."""
        kind, fields = type(self), self._fields
        model = kind.__new__(kind)
        dict.__init__(model, self)
        for name, value in values.items():
            spec = fields[name]
            model[name] = value if type(value) in spec.plain else spec.conform(kind.__name__, value)
        model.validate()
        return model

    def validate(self) -> None:
        """Check what no single field can; called whenever a whole model is made, written or read."""

    def to_serializable(self) -> dict[str, Any]:
        """Return a checked, plain copy, ready for storage. Raises: InvalidInputError."""
        self._check()
        return typing.cast("dict[str, Any]", _plain(self))

    def without_defaults(self) -> dict[str, Any]:
        """Return what `to_serializable` does, less the fields that have their default: reading puts them back."""
        fields = self._fields
        return {
            key: value
            for key, value in self.to_serializable().items()
            if key not in fields or fields[key].required or value != fields[key].default()
        }

    @classmethod
    def from_serializable(cls, data: dict[str, Any]) -> Self:
        """Make a checked model of what was stored, unknown keys included. Raises: InvalidInputError."""
        if not isinstance(data, dict):
            raise InvalidInputError(f"{cls.__name__}: expected an object, found {type(data).__name__} {data!r}")
        model = cls.__new__(cls)
        dict.__init__(model, data)
        model._check()
        return model

    def _check(self) -> None:
        name = type(self).__name__
        for key, spec in self._fields.items():
            if key in self:
                value = self[key]
                if type(value) not in spec.plain:
                    self[key] = spec.conform(name, value)
            elif spec.required:
                raise InvalidInputError(f"{name}: {key} is missing")
            else:
                self[key] = spec.default()
        self.validate()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict.__repr__(self)})"


@functools.cache
def _check_of(hint: Any) -> _Check:
    """Make the check of a hint: a hint is taken apart once, and millions of values are checked by it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return lambda value, where: value
    if origin in (typing.Union, types.UnionType):
        return _check_of_union(arguments)
    if origin is Literal:
        return _check_of_literal(arguments)
    if origin in (list, tuple):
        return _check_of_list(hint, arguments[0])
    if origin is dict:
        return _check_of_dict(hint, *arguments)
    return _check_of_class(types.NoneType if hint is None else hint)


def _check_of_class(hint: type) -> _Check:
    is_model = issubclass(hint, Model)
    from_serializable: Callable[[Any], Any] | None = getattr(hint, "from_serializable", None)

    def check(value: Any, where: str) -> Any:
        if type(value) is hint:
            return value
        if from_serializable is not None and (type(value) is dict or not is_model):
            return from_serializable(value)
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
            return value
        raise _misfit(value, _name(hint), where)

    return check


def _check_of_literal(choices: tuple[Any, ...]) -> _Check:
    kind = type(choices[0])

    def check(value: Any, where: str) -> Any:
        if value in choices and isinstance(value, kind):
            return value
        raise InvalidInputError(f"{where}: {value!r} is not one of {', '.join(repr(choice) for choice in choices)}")

    return check


def _check_of_list(hint: Any, item_hint: Any) -> _Check:
    item = _check_of(item_hint)

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, list | tuple):
            raise _misfit(value, _name(hint), where)
        try:
            return [item(element, where) for element in value]
        except InvalidInputError:
            # Once more, to say which one it was.
            return [item(element, f"{where}[{index}]") for index, element in enumerate(value)]

    return check


def _check_of_dict(hint: Any, key_hint: Any, value_hint: Any) -> _Check:
    key_check, value_check = _check_of(key_hint), _check_of(value_hint)

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _misfit(value, _name(hint), where)
        try:
            return {key_check(key, where): value_check(item, where) for key, item in value.items()}
        except InvalidInputError:
            return {
                key_check(key, f"key of {where}"): value_check(item, f"{where}[{key!r}]") for key, item in value.items()
            }

    return check


def _check_of_union(hints: tuple[Any, ...]) -> _Check:
    is_optional = types.NoneType in hints
    present = [hint for hint in hints if hint is not types.NoneType]
    checks = [_check_of(hint) for hint in present]
    only = checks[0] if len(checks) == 1 else None
    names = " or ".join(_name(hint) for hint in hints)

    def check(value: Any, where: str) -> Any:
        if value is None and is_optional:
            return None
        if only is not None:
            return only(value, where)
        # An exact type first: among `int | float`, 1 stays an integer.
        if type(value) in present:
            return value
        for candidate in checks:
            try:
                return candidate(value, where)
            except InvalidInputError:
                continue
        raise _misfit(value, names, where)

    return check


def _misfit(value: Any, expected: str, where: str) -> InvalidInputError:
    return InvalidInputError(f"{where}: expected {expected}, found {type(value).__name__} {value!r}")


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.to_serializable() if hasattr(value, "to_serializable") else value
