"""What a store answers when it says no, turned into errors of ours: what, where, and what to do."""

import contextlib
import html
import re
from collections.abc import Iterator
from typing import NamedTuple

from obstore.exceptions import AlreadyExistsError as ObstoreAlreadyExistsError
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    SiltstoneError,
    StorageError,
)
from siltstone.objects.aws import no_credentials

_CREDENTIALS = {
    "AuthFailure": "the credentials are wrong",
    "ExpiredToken": "the credentials have expired",
    "ExpiredTokenException": "the credentials have expired",
    "InvalidAccessKeyId": "the store does not know this access key",
    "InvalidClientTokenId": "the store does not know this access key",
    "InvalidToken": "the session token is not valid",
    "RequestExpired": "the credentials have expired",
    "SignatureDoesNotMatch": "the secret access key does not belong to this access key",
    "TokenRefreshRequired": "the credentials have expired",
    "XAdminUserNotFound": "the store does not know this access key",
}
_CREDENTIALS_FIX = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_PROFILE"
_REGION_CODES = ("AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect")
_ABSENT_CODES = ("", "NoSuchKey", "NotFound", "NoSuchVersion")
# How stores say that they do not know a header; 412 and 409 are answers to the condition itself.
_NO_CONDITIONS = (
    (501, ("", "NotImplemented")),
    (400, ("InvalidArgument", "InvalidRequest", "NotImplemented", "UnsupportedHeader")),
)
_UNREACHED = {
    "dns error": "the store was not reached, since its name was not found",
    "ConnectionRefused": "the store was not reached, since it refused the connection",
    "kind: Timeout": "the store gave no answer in time",
    "IncompleteMessage": "the store ended the connection without an answer",
}
# Refusals that may be over with the next request.
_PASSING_STATUSES = (408, 409, 412, 425, 429)
_PASSING_CODES = ("IncompleteBody", "RequestTimeout")
_IN_PROGRESS_CODES = ("ConditionalRequestConflict", "OperationAborted")


class Answer(NamedTuple):
    """The parts of a refusal that say something."""

    status: int
    code: str
    message: str
    region: str
    text: str


def read_answer(error: Exception) -> Answer:
    """Take apart the text of an error of the store library."""
    text = str(error).split("\n\nDebug source")[0].strip()
    status = re.search(r"status code: (\d{3})", text)
    start, _, body = text.partition("<Error>")
    parts = {name: html.unescape(value) for name, value in re.findall(r"<(\w+)>([^<]*)</\1>", body)}
    region = parts.get("Region") or parts.get("BucketRegion") or ""
    if not region and parts.get("Code") in _REGION_CODES:
        # Also for a redirect that names no region, but the endpoint to use instead.
        named = re.search(r"\.s3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.", parts.get("Endpoint", ""))
        region = named[1] if named else ""
    spoken = re.sub(r"<\?xml[^>]*>", "", start).strip(" :\n")
    if parts:
        spoken = f"{parts.get('Code', '')}: {parts.get('Message', '')}".strip(": ")
    return Answer(int(status[1]) if status else 0, parts.get("Code", ""), parts.get("Message", ""), region, spoken)


def is_in_progress(error: Exception) -> bool:
    """Say whether the store refused only because another request on the same object has not ended yet."""
    return read_answer(error).code in _IN_PROGRESS_CODES


@contextlib.contextmanager
def translated(root: str, path: str, *, writing: bool = False, creating: bool = False) -> Iterator[None]:
    """Raise errors of ours for those of the store; `creating` is a write on condition. Raises: SiltstoneError."""
    try:
        yield
    except SiltstoneError:
        raise
    except (BaseError, OSError) as error:
        if creating and _refuses_conditions(error):
            raise InvalidInputError(
                f"{root}: the store has no create-if-absent ({read_answer(error).text}), so {path} was not written. "
                "Use a store with conditional writes; `siltstone doctor` checks one"
            ) from error
        raise _translation(root, path, error, writing or creating) from error


def _refuses_conditions(error: Exception) -> bool:
    """Say whether the store answered that it has no conditional writes: then nothing was written, by whichever try."""
    answer = read_answer(error)
    return any(answer.status == status and answer.code in codes for status, codes in _NO_CONDITIONS)


def _asked_for_credentials(root: str, text: str) -> str | None:
    """Return the host of the failed request where it was not sent to the bucket: it was to get credentials."""
    bucket = root.removeprefix("s3://").partition("/")[0]
    asked = re.search(r"Error performing [A-Z]+ (https?://([^/\s]+)\S*) in ", text)
    return asked[2] if asked and root.startswith("s3://") and bucket not in asked[1] else None


def _translation(root: str, path: str, error: Exception, writing: bool) -> SiltstoneError:
    # What trying again cannot help is said to be denied, so that nobody does.
    where = f"{root}/{path}"
    answer = read_answer(error)
    credentials_host = _asked_for_credentials(root, str(error))
    if credentials_host is not None:
        return AccessDeniedError(f"{root}: {no_credentials(f'{credentials_host} gave none ({answer.text})')}")
    if answer.code == "NoSuchBucket" or (writing and answer.status == 404 and answer.code in _ABSENT_CODES):
        return AccessDeniedError(f"{root}: the bucket does not exist; create it or fix the root")
    if answer.code in _CREDENTIALS:
        return AccessDeniedError(f"{root}: {_CREDENTIALS[answer.code]} ({answer.text}); {_CREDENTIALS_FIX}")
    if answer.code in _REGION_CODES or "redirect without LOCATION" in answer.text:
        right = f"; set AWS_REGION={answer.region}" if answer.region else "; set AWS_REGION to the bucket's region"
        return AccessDeniedError(f"{root}: the bucket is in another region than the request was sent to{right}")
    if answer.code == "RequestTimeTooSkewed":
        return AccessDeniedError(f"{root}: this machine's clock differs from the store's; set it, e.g. by NTP")
    if isinstance(error, FileNotFoundError) and answer.code in _ABSENT_CODES:
        return NotFoundError(f"{where}: no such object")
    if isinstance(error, ObstoreAlreadyExistsError) and answer.code not in _IN_PROGRESS_CODES:
        return AlreadyExistsError(f"{where}: exists already")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or answer.status in (401, 403):
        return AccessDeniedError(f"{where}: access denied; check credentials and policy ({answer.text})")
    is_passing = answer.status in _PASSING_STATUSES or answer.code in (*_PASSING_CODES, *_IN_PROGRESS_CODES)
    if writing and 400 <= answer.status < 500 and not is_passing:
        return AccessDeniedError(
            f"{where}: the store refused to write it ({answer.status} {answer.text}), and nothing was written; check "
            "AWS_ENDPOINT_URL and the bucket's settings"
        )
    if "error sending request" in answer.text and not answer.status:
        reason = next(
            (reason for mark, reason in _UNREACHED.items() if mark in str(error)), "the store was not reached"
        )
        return StorageError(f"{where}: {reason}; check the network and AWS_ENDPOINT_URL ({answer.text})")
    return StorageError(f"{where}: {answer.text}")
