"""Dict models: declared like dataclasses, stored as plain dictionaries.

A model *is* a `dict` whose keys are its field names, so `json`, `pickle` and Spark's serializer take it as it is.
Reading an attribute reads the key; assigning one checks the value first; `to_serializable` and
`from_serializable` check the whole. Keys that no field declares survive every round trip.
"""

import inspect
import types
import typing
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, dataclass_transform

from siltstone.errors import InvalidInputError

_REQUIRED: Any = object()
T = TypeVar("T")


class _Default(NamedTuple):
    value: Any
    factory: Any
    check: Any


def field(*, default: Any = _REQUIRED, default_factory: Any = None, check: Any = None) -> Any:
    """Declare a default and a check; `check(value)` returns the value to store or raises."""
    return _Default(default, default_factory, check)


class _Field:
    """A descriptor that reads and writes one key of the dictionary."""

    def __init__(self, owner: type, name: str, declared: _Default) -> None:
        self.owner = owner
        self.name = name
        self.declared = declared

    @property
    def required(self) -> bool:
        return self.declared.value is _REQUIRED and self.declared.factory is None

    @property
    def hint(self) -> Any:
        return typing.get_type_hints(self.owner)[self.name]

    def default(self) -> Any:
        return self.declared.factory() if self.declared.factory else self.declared.value

    def conform(self, model: str, value: Any) -> Any:
        value = conform(value, self._hint(), f"{model}.{self.name}")
        return self.declared.check(value) if self.declared.check and value is not None else value

    def _hint(self) -> Any:
        cached = self.__dict__.get("_cached_hint", _REQUIRED)
        if cached is _REQUIRED:
            cached = self.__dict__["_cached_hint"] = self.hint
        return cached

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
            if not isinstance(declared, _Default):
                declared = _Default(declared, None, None)
            fields[name] = _Field(cls, name, declared)
            setattr(cls, name, fields[name])
        cls._fields = fields

    def __init__(self, **values: Any) -> None:
        super().__init__()
        unknown = [name for name in values if name not in self._fields]
        missing = [name for name, spec in self._fields.items() if spec.required and name not in values]
        if missing:
            raise InvalidInputError(f"{type(self).__name__}: missing {', '.join(missing)}")
        if unknown:
            raise InvalidInputError(f"{type(self).__name__}: unknown {', '.join(unknown)}")
        for name, spec in self._fields.items():
            self[name] = spec.conform(type(self).__name__, values[name]) if name in values else spec.default()
        self.validate()

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
            key: each
            for key, each in self.to_serializable().items()
            if key not in fields or fields[key].required or each != fields[key].default()
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
                self[key] = spec.conform(name, self[key])
            elif spec.required:
                raise InvalidInputError(f"{name}: {key} is missing")
            else:
                self[key] = spec.default()
        self.validate()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict.__repr__(self)})"


def conform(value: Any, hint: Any, where: str) -> Any:
    """Return `value` as `hint` wants it, or say where it does not fit. Raises: InvalidInputError."""
    origin = typing.get_origin(hint)
    if hint is Any or hint is object:
        return value
    if hint is None or hint is types.NoneType:
        if value is None:
            return None
    elif origin in (typing.Union, types.UnionType):
        return _conform_union(value, typing.get_args(hint), where)
    elif origin is Literal:
        if value in typing.get_args(hint) and isinstance(value, type(typing.get_args(hint)[0])):
            return value
        choices = ", ".join(repr(choice) for choice in typing.get_args(hint))
        raise InvalidInputError(f"{where}: {value!r} is not one of {choices}")
    elif origin in (list, tuple):
        if isinstance(value, list | tuple):
            (item,) = typing.get_args(hint)[:1]
            return [conform(each, item, f"{where}[{index}]") for index, each in enumerate(value)]
    elif origin is dict:
        if isinstance(value, dict):
            key_hint, value_hint = typing.get_args(hint)
            return {
                conform(key, key_hint, f"key of {where}"): conform(each, value_hint, f"{where}[{key!r}]")
                for key, each in value.items()
            }
    elif isinstance(hint, type) and issubclass(hint, Model):
        if isinstance(value, hint):
            return value
        if type(value) is dict:
            return hint.from_serializable(value)
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise InvalidInputError(f"{where}: expected {_name(hint)}, found {type(value).__name__} {value!r}")


def _conform_union(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    if value is None and types.NoneType in hints:
        return None
    present = [hint for hint in hints if hint is not types.NoneType]
    if len(present) == 1:
        return conform(value, present[0], where)
    # An exact type first: among `int | float`, 1 stays an integer.
    for hint in present:
        if type(value) is hint:
            return value
    for hint in present:
        try:
            return conform(value, hint, where)
        except InvalidInputError:
            continue
    names = " or ".join(_name(hint) for hint in hints)
    raise InvalidInputError(f"{where}: expected {names}, found {type(value).__name__} {value!r}")


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
