"""Hiding secrets in text that people or machines get to see: messages, logs, history, pages."""

import re
from typing import Any

MASK = "***"

_NAME = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credentials?|signature|authorization|cookie|"
    r"(?:api|access|account|private|secret|shared)[-_.]?key)(?:[-_.]?(?:key|value))?"
)
# These are words of their own, not parts of others.
_SHORT_NAME = r"(?<![A-Za-z0-9])(?:pass|pw|sig|sas)"
_SECRET_NAME = re.compile(rf"(?i)(?:{_NAME}|{_SHORT_NAME})\Z")
# Up to the last @, since people forget to escape one in a password; bounded, since text may be long.
_USERINFO = re.compile(r"(://[^/\s:'\"]{0,256}:)[^\s'\"]{0,1024}@")
_LONE_USERINFO = re.compile(r"(?i)(https?://)[^/\s:@'\"]+@")
_HEADER = re.compile(r"(?i)((?:authorization|cookie)\\*[\"']?\s*[:=]\s*\\*[\"']?)[^\r\n\"']*[^\r\n\"'\\]")
_SCHEME = re.compile(r"(?i:\b(Bearer)\s+)[\w.~+/=-]+|\b(Basic)\s+(?=[A-Za-z+/]*[0-9+/=])[A-Za-z0-9+/]{4,}=*")
_ELEMENT = re.compile(rf"(?i)({_NAME}>)[^<]+")
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    rf"""(?isx)
    (?P<name>(?:{_NAME}|{_SHORT_NAME})(?P<end>\\*["'])?\s*(?:[=:]|%3d)\s*)
    (?!none(?:[\s,;]|\Z))
    (?:
        (?P<quote>\\*["'])(?:\\.|[^\\])*?(?:(?P=quote)|\Z)
        # A quoted name is of JSON, or the name of a column in a sentence, which goes on after the colon.
        | (?(end)[0-9][^\s,}}]*|[^\s&;'"]+)
    )"""
)


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret, such as `sslpassword` or `X-Amz-Signature`."""
    return _SECRET_NAME.search(name) is not None


def mask_secrets(text: str) -> str:
    """Hide passwords, keys, tokens and signatures: in addresses, parameters, headers and JSON."""
    text = _USERINFO.sub(rf"\1{MASK}@", text)
    text = _LONE_USERINFO.sub(rf"\1{MASK}@", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _SCHEME.sub(lambda match: f"{match[1] or match[2]} {MASK}", text)
    text = _ELEMENT.sub(rf"\1{MASK}", text)
    text = _PRIVATE_KEY.sub(rf"\1{MASK}", text)
    return _PARAMETER.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    word = match.string[match.string.rfind(" ", 0, match.start()) + 1 : match.start()]
    if "/" in word and re.search(r":\s+$", match["name"]):
        # A file of this name, about which a sentence says something.
        return match[0]
    quote = match["quote"] or ""
    return f"{match['name']}{quote}{MASK}{quote}"


def mask_values(value: Any) -> Any:
    """Hide secrets in a value of any shape: by the names of what it holds, and in all text."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, dict):
        return {
            key: MASK if isinstance(key, str) and is_secret_name(key) and item is not None else mask_values(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask_values(item) for item in value]
    return value
