"""Access to S3: credentials, settings and what its errors mean."""

import configparser
import contextlib
import datetime
import functools
import html
import http.client
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

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

DEFAULT_PROFILE = "default"
DEFAULT_ATTEMPTS = 10
DEFAULT_TIMEOUT_SECONDS = 120
TIMEOUT_VARIABLE = "SILTSTONE_S3_TIMEOUT_SECONDS"
SHARE_VARIABLE = "SILTSTONE_SHARE_CREDENTIALS"
_METADATA_HOST = "169.254.169.254"
_METADATA_SECONDS = 1.0
_KEYS_TRUSTED_FOR = datetime.timedelta(minutes=10)
# What only an AWS library can turn into keys: roles, single sign-on, programs that print credentials.
_DERIVED_KEYS = ("role_arn", "sso_session", "sso_start_url", "sso_account_id", "credential_process", "login_session")
_OWN_IDENTITY = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


@dataclass(frozen=True)
class Keys:
    """Credentials as they are sent: two keys, and a token where they are temporary."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class S3Settings:
    """How S3 is reached. Without keys, whoever uses it has an identity of its own, such as a role."""

    endpoint: str | None = None
    region: str | None = None
    keys: Keys | None = None
    profile: str | None = None
    is_anonymous: bool = False
    max_attempts: int = DEFAULT_ATTEMPTS
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS

    @property
    def is_aws(self) -> bool:
        """Whether this is S3 of AWS itself, and not another store with the same interface."""
        return self.endpoint is None or ".amazonaws.com" in self.endpoint


def find_settings(environment: Mapping[str, str] | None = None) -> S3Settings:
    """Find out what the environment and the profile files say; where they say nothing, nothing is asked.

    Variables win over profiles, and what is said for S3 wins over what is said for all services. A profile that
    needs a role or single sign-on keeps its name, and `fresh_keys` gets the keys.
    Raises: InvalidInputError for a profile that does not exist or has half of the keys.
    """
    env = os.environ if environment is None else environment
    profile, services = _profile(env)
    endpoint = None
    if env.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = (
            env.get("AWS_ENDPOINT_URL_S3")
            or env.get("AWS_ENDPOINT_URL")
            or services.get("endpoint_url")
            or profile.get("endpoint_url")
        )
    attempts = env.get("AWS_MAX_ATTEMPTS") or profile.get("max_attempts")
    settings = S3Settings(
        endpoint=(endpoint or "").rstrip("/") or None,
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region") or None,
        is_anonymous=env.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1"),
        max_attempts=_count("AWS_MAX_ATTEMPTS", attempts, DEFAULT_ATTEMPTS),
        timeout_seconds=_count(TIMEOUT_VARIABLE, env.get(TIMEOUT_VARIABLE), DEFAULT_TIMEOUT_SECONDS),
    )
    if settings.endpoint and not settings.endpoint.startswith(("http://", "https://")):
        raise InvalidInputError(
            f"S3 endpoint {settings.endpoint!r} is not an address; write AWS_ENDPOINT_URL=https://host:port"
        )
    keys = _keys(
        env.get("AWS_ACCESS_KEY_ID"),
        env.get("AWS_SECRET_ACCESS_KEY"),
        env.get("AWS_SESSION_TOKEN") or env.get("AWS_TOKEN"),
        "the environment",
    ) or _keys(
        profile.get("aws_access_key_id"),
        profile.get("aws_secret_access_key"),
        profile.get("aws_session_token"),
        f"profile {_profile_name(env)}",
    )
    if keys is None and any(name in profile for name in _DERIVED_KEYS):
        return replace(settings, profile=_profile_name(env))
    return replace(settings, keys=keys)


def _count(name: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInputError(f"{name}={text!r} is not a whole number of at least 1; correct it, or leave it out")
    return int(text)


def _keys(access_key_id: str | None, secret: str | None, token: str | None, where: str) -> Keys | None:
    if bool(access_key_id) != bool(secret):
        missing = "secret access key" if access_key_id else "access key id"
        raise InvalidInputError(f"AWS credentials in {where} have no {missing}; set both, or neither")
    return Keys(access_key_id, secret, token or None) if access_key_id and secret else None


def _profile_name(env: Mapping[str, str]) -> str:
    return env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or DEFAULT_PROFILE


def _profile(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a profile's own settings, and those that it has for S3 alone."""
    home = Path(env.get("HOME") or Path.home())
    config_file = Path(env.get("AWS_CONFIG_FILE") or home / ".aws/config").expanduser()
    credentials_file = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials").expanduser()
    config, credentials = _parsed(config_file), _parsed(credentials_file)
    name = _profile_name(env)
    general = config.get(f"profile {name}") or (config.get(name) if name == DEFAULT_PROFILE else None)
    if name != DEFAULT_PROFILE and general is None and name not in credentials:
        raise InvalidInputError(
            f"AWS profile {name!r} is neither in {config_file} nor in {credentials_file}; fix AWS_PROFILE, or add it"
        )
    profile = {**(general or {}), **credentials.get(name, {})}
    services = config.get(f"services {profile.get('services', '')}") or {}
    return profile, _nested(services.get("s3", ""))


def _parsed(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="\0", strict=False)
    try:
        parser.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError):
        return {}
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{path}: cannot be read as an AWS profile file ({reason}); fix the line") from error
    return {section: dict(parser.items(section)) for section in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """Parse the indented lines that a value of a profile file may consist of."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def fresh_keys(settings: S3Settings) -> Keys | None:
    """Return the keys to use now, or None if whoever runs this has an identity of its own.

    Raises: InvalidInputError where a profile needs a library that is missing; AccessDeniedError where it gives none.
    """
    if settings.keys is not None or settings.profile is None:
        return settings.keys
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError as error:
        raise InvalidInputError(
            f"AWS profile {settings.profile!r} takes its keys from a role, single sign-on or a program, which needs "
            "botocore: pip install 'siltstone[aws]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        session = botocore.session.Session(profile=settings.profile)
        credentials = session.get_credentials()
        frozen = None if credentials is None else credentials.get_frozen_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise AccessDeniedError(f"AWS profile {settings.profile!r} gives no credentials: {error}") from error
    if frozen is None or not frozen.access_key or not frozen.secret_key:
        raise AccessDeniedError(f"AWS profile {settings.profile!r} gives no credentials; sign in, or fix the profile")
    return Keys(frozen.access_key, frozen.secret_key, frozen.token)


def shared(settings: S3Settings, environment: Mapping[str, str] | None = None) -> S3Settings:
    """Return what may travel to executors: everything, or, where that is switched off, no keys."""
    env = os.environ if environment is None else environment
    if env.get(SHARE_VARIABLE, "true").lower() in ("false", "0", "no"):
        return replace(settings, keys=None, profile=None)
    return replace(settings, keys=fresh_keys(settings), profile=None)


def completed(settings: S3Settings) -> S3Settings:
    """Return settings that came without keys with those that this process has of its own, if it has any."""
    if settings.keys is not None:
        return settings
    own = find_settings()
    return replace(settings, keys=own.keys, profile=own.profile)


def store_options(settings: S3Settings) -> dict[str, Any]:
    """Return the settings as the object store takes them. Raises: AccessDeniedError where nothing has credentials."""
    options: dict[str, Any] = {}
    if settings.endpoint is not None:
        # The name for S3 alone is what wins over both of the environment's.
        options["aws_endpoint_url_s3"] = settings.endpoint
    if settings.region is not None:
        options["region"] = settings.region
    if settings.keys is not None:
        options["access_key_id"] = settings.keys.access_key_id
        options["secret_access_key"] = settings.keys.secret_access_key
        if settings.keys.session_token is not None:
            options["session_token"] = settings.keys.session_token
    elif settings.profile is not None:
        options["credential_provider"] = functools.partial(_provide_keys, settings)
    elif not (settings.is_anonymous or any(os.environ.get(name) for name in _OWN_IDENTITY) or _answers_for_role()):
        # The store's own search for a role would go on for minutes.
        raise AccessDeniedError(no_credentials("this machine has no role"))
    return options


def _provide_keys(settings: S3Settings) -> dict[str, Any]:
    """Return the keys of a profile, to be asked for again before they can have expired."""
    keys = fresh_keys(settings)
    assert keys is not None
    return {
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "token": keys.session_token,
        "expires_at": datetime.datetime.now(datetime.UTC) + _KEYS_TRUSTED_FOR,
    }


def no_credentials(last_place: str) -> str:
    """Return a message that says where credentials were searched for, and what to set."""
    return (
        "no AWS credentials: none in AWS_ACCESS_KEY_ID, none in the profile "
        f"{_profile_name(os.environ)!r}, and {last_place}. Set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true reads public buckets"
    )


def _answers_for_role() -> bool:
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    if os.environ.get("AWS_METADATA_ENDPOINT"):
        return True
    connection = http.client.HTTPConnection(_METADATA_HOST, timeout=_METADATA_SECONDS)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("PUT", "/latest/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        return connection.getresponse().status == http.HTTPStatus.OK
    return False


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
        regional = re.search(r"\.s3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.", parts.get("Endpoint", ""))
        region = regional[1] if regional else ""
    summary = re.sub(r"<\?xml[^>]*>", "", start).strip(" :\n")
    if parts:
        summary = f"{parts.get('Code', '')}: {parts.get('Message', '')}".strip(": ")
    return Answer(int(status[1]) if status else 0, parts.get("Code", ""), region, summary)


def is_in_progress(error: Exception) -> bool:
    """Return whether the store refused only because another request on the same object has not ended yet."""
    return read_answer(error).code in _IN_PROGRESS_CODES


@contextlib.contextmanager
def translated(root: str, path: str, *, writing: bool = False, creating: bool = False) -> Iterator[None]:
    """Raise errors of ours for those of the store; `creating` is a write on condition. Raises: SiltstoneError."""
    try:
        yield
    except SiltstoneError:
        raise
    except (BaseError, OSError) as error:
        answer = read_answer(error)
        # By whichever try the store says that it has no conditional writes: nothing was written.
        if creating and any(answer.status == status and answer.code in codes for status, codes in _NO_CONDITIONS):
            raise InvalidInputError(
                f"{root}: the store has no create-if-absent ({answer.text}), so {path} was not written. "
                "Use a store with conditional writes; `siltstone doctor` checks one"
            ) from error
        raise _translation(root, path, error, answer, writing or creating) from error


def _asked_for_credentials(root: str, text: str) -> str | None:
    """Return the host of the failed request where it was not sent to the bucket: it was to get credentials."""
    bucket = root.removeprefix("s3://").partition("/")[0]
    request = re.search(r"Error performing [A-Z]+ (https?://([^/\s]+)\S*) in ", text)
    return request[2] if request and root.startswith("s3://") and bucket not in request[1] else None


def _translation(root: str, path: str, error: Exception, answer: Answer, writing: bool) -> SiltstoneError:
    # What trying again cannot help is said to be denied, so that nobody does.
    where = f"{root}/{path}"
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
