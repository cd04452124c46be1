"""The delta language: values, conditions, deltas, and their text."""

from siltstone.documents.language.conditions import Condition
from siltstone.documents.language.deltas import ConditionalBuilder, Delta, MapBuilder, SetBuilder
from siltstone.documents.language.parser import parse_condition, parse_delta, parse_deltas, parse_value
from siltstone.documents.language.values import UNDEFINED, Json, Undefined, Value, strictly_equal, value_text

__all__ = [
    "UNDEFINED",
    "Condition",
    "ConditionalBuilder",
    "Delta",
    "Json",
    "MapBuilder",
    "SetBuilder",
    "Undefined",
    "Value",
    "parse_condition",
    "parse_delta",
    "parse_deltas",
    "parse_value",
    "strictly_equal",
    "value_text",
]
