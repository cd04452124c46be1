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
    NotFoundError,
    SiltstoneError,
    StorageError,
)

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
def translated(root: str, path: str, *, writing: bool = False) -> Iterator[None]:
    """Raise errors of ours for those of the store. Raises: SiltstoneError."""
    try:
        yield
    except SiltstoneError:
        raise
    except (BaseError, OSError) as error:
        raise _translation(root, path, error, writing) from error


def _translation(root: str, path: str, error: Exception, writing: bool) -> SiltstoneError:
    # What trying again cannot help is said to be denied, so that nobody does.
    where = f"{root}/{path}"
    answer = read_answer(error)
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
    if "error sending request" in answer.text and not answer.status:
        return StorageError(
            f"{where}: the store was not reached; check the network and AWS_ENDPOINT_URL ({answer.text})"
        )
    return StorageError(f"{where}: {answer.text}")
