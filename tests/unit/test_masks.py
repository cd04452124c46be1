"""No secret is shown, however it is spelled; and what is no secret stays."""

import json
import logging
import pickle

import pytest

from siltstone.errors import StorageError
from siltstone.service import JsonFormatter, TextFormatter
from siltstone.text import is_secret_name, mask_secrets, mask_values

HUSH = "hu5h"
SPELLINGS = [
    "postgresql://me:hu5h@host:5432/db?sslmode=require",
    "postgresql+psycopg://:hu5h@/db",
    "postgresql://me@corp:hu5h@host/db",
    "postgresql://me:x@hu5h@host/db",
    "postgresql://me:x/hu5h@host/db",
    "postgresql://me:x?hu5h@host/db",
    "postgresql://host/db?user=me&password=hu5h",
    "postgresql://host/db?sslpassword=hu5h&sslmode=require",
    "jdbc:postgresql://host/db?user=me&password=hu5h",
    "https://me:hu5h@host/path",
    "https://hu5h@host/path",
    "redis://:hu5h@host",
    "connection failed: host=x password=hu5h user=me",
    "password = 'hu5h with words'",
    "PGPASSWORD=hu5h",
    "password=none-hu5h",
    "pwd: hu5h",
    "AWS_SECRET_ACCESS_KEY=hu5h",
    "aws_session_token = hu5h",
    "secret_access_key: hu5h",
    "secretKey=hu5h",
    "s3://bucket?access_key=hu5h&region=eu",
    "Token: hu5h",
    "?token=hu5h&x=1",
    "refresh_token=hu5h",
    "client_secret=hu5h",
    "api-key: hu5h",
    "X-Api-Key: hu5h",
    "private_key=hu5h",
    "https://account.blob.core.windows.net/c?sv=2024&sig=hu5h%3D",
    "AccountName=a;AccountKey=hu5h==;EndpointSuffix=core",
    "https://b.s3.amazonaws.com/k?X-Amz-Signature=hu5h&X-Amz-Expires=60",
    "https://b.s3.amazonaws.com/k?X-Amz-Security-Token=hu5h",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=hu5h%2F2026",
    "Bearer hu5h",
    "authorization: bearer hu5h",
    "Authorization: Basic hu5h==",
    "Basic hu5h==",
    "Authorization: AWS4-HMAC-SHA256 Credential=x, SignedHeaders=host, Signature=hu5h",
    "Proxy-Authorization: Digest username=me, response=hu5h",
    "Cookie: session=hu5h; theme=dark",
    '{"user": "me", "password": "hu5h"}',
    '{"password":"x\\"hu5h"}',
    '{"password": "hu5h was cut here',
    '{"password": 5, "token":"hu5h"}',
    "{'user': 'me', 'password': 'hu5h'}",
    json.dumps(json.dumps({"password": "hu5h", "other": 1})),
    '{"headers": {"Authorization": "Bearer hu5h"}}',
    '{"SecretAccessKey": "hu5h"}',
    '{"sslpassword": "hu5h"}',
    "spark.hadoop.fs.s3a.secret.key=hu5h",
    "fs.s3a.bucket.b.access.key: hu5h",
    "postgresql://host/db%3Fpassword%3Dhu5h",
    "<Error><SecretAccessKey>hu5h</SecretAccessKey></Error>",
    "<SessionToken>hu5h</SessionToken>",
    "-----BEGIN RSA PRIVATE KEY-----\nhu5h\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\nhu5h was cut",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_secret_is_hidden_in_messages_and_logs(text: str) -> None:
    assert HUSH in text
    assert HUSH not in mask_secrets(text)
    assert "***" in mask_secrets(text)
    assert HUSH not in str(StorageError(f"could not connect ({text}); try again"))
    record = logging.makeLogRecord(
        {"msg": "failed: %s", "args": (text,), "reason": text, "nested": {"list": [text]}, "levelname": "INFO"}
    )
    assert HUSH not in JsonFormatter().format(record)
    assert HUSH not in TextFormatter().format(record)
    assert mask_secrets(mask_secrets(text)) == mask_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////data/lake.service.db at 12:30, user@host",
        "postgresql://me@host:5432/db?sslmode=require",
        "http://127.0.0.1:8080/tables",
        "s3://bucket/tables/shop/orders: 3 files",
        "no AWS credentials: none in the profile",
        "column 'password': its values have no type in common",
        "column 'token' is not a column; known are id, token",
        "the session token is not valid",
        "/etc/siltstone/token: is empty; write a token into it",
        "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_PROFILE",
        "password authentication failed for user me",
        "the design=x, significant: 3, passes: 2, bypass=1",
        "a basic reading of 12 files",
        "primary_key=order_id sort_key=at",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask_secrets(text) == text


def test_the_rest_of_an_address_stays() -> None:
    shown = mask_secrets("could not reach postgresql://me:hush@host:5432/db?password=hush&sslmode=require, try again")
    assert shown == "could not reach postgresql://me:***@host:5432/db?password=***&sslmode=require, try again"


@pytest.mark.parametrize("name", ["password", "sslpassword", "PGPASSWORD", "X-Amz-Signature", "sig", "client_secret"])
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["design", "sslmode", "passfile", "token_count", "access_key_id", "user", "key"])
def test_other_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


def test_values_of_any_shape_are_masked_by_name() -> None:
    value = {"user": "me", "password": "x", "more": [{"sig": 1}, "Bearer x"], 3: ("token=x", None), "token": None}
    assert mask_values(value) == {
        "user": "me",
        "password": "***",
        "more": [{"sig": "***"}, "Bearer ***"],
        3: ["token=***", None],
        "token": None,
    }


def test_an_error_keeps_what_it_is_through_pickling() -> None:
    error = pickle.loads(pickle.dumps(StorageError("postgresql://me:hush@host/db: no answer")))
    assert type(error) is StorageError
    assert str(error) == "postgresql://me:***@host/db: no answer"
