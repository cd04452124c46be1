"""Which entries of a commit log expire: those that say so, and ids of commits from before they did."""

import orjson

EXPIRES_AT = "expires_at"
_MARK = b'"expires_at":'
_OLD_IDS = b'{"key":"transaction/'
_OLD_IDS_LAST_MS = 30 * 24 * 3600 * 1000


def may_expire(line: bytes) -> bool:
    """Return whether an entry may expire some time."""
    return _MARK in line or line.startswith(_OLD_IDS)


def is_expired(line: bytes, now_ms: int) -> bool:
    """Return whether an entry that may expire can be dropped by now; one that is damaged never is."""
    try:
        entry = orjson.loads(line)
        if EXPIRES_AT in entry:
            return int(entry[EXPIRES_AT]) <= now_ms
        return line.startswith(_OLD_IDS) and int(entry["committed_at"]) + _OLD_IDS_LAST_MS < now_ms
    except (ValueError, KeyError, TypeError):
        return False
