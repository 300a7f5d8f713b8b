"""Urls of S3 objects that are signed without botocore are those that botocore makes; what it alone knows is left to it."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from pipeline.shards.remote.s3 import sign_by_botocore, sign_plain, sign_s3

pytest.importorskip("botocore")
pytestmark = pytest.mark.stacks

KEYS = {"key": "name", "secret": "5ecret/+"}
TOKEN = {**KEYS, "token": "t/+=~ x"}
NAMES = ["train-000001.tar", "/é+%25=~'()*.tar", "a?b#c&d//../e f"]
LOCAL = "http://127.0.0.1:9000"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Leave no variable and no file that states anything; return the folder of the user's files."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def agree(bucket: str, options: dict[str, Any]) -> None:
    for name in NAMES:
        url = sign_by_botocore(bucket, name, options, 60)
        query = dict(parse_qsl(urlsplit(url).query))
        when = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ") if query else None
        found = sign_plain(bucket, name, options, 60, when)
        assert found is not None
        assert found.partition("?")[0] == url.partition("?")[0]
        assert dict(parse_qsl(urlsplit(found).query)) == query


@pytest.mark.parametrize(
    ("bucket", "options"),
    [
        ("bucket", KEYS),
        ("my-bucket-1", {**TOKEN, "client_kwargs": {"region_name": "eu-west-1"}}),
        ("Buc.ket_1", {**TOKEN, "endpoint_url": f"{LOCAL}/"}),
        ("bucket", {**KEYS, "endpoint_url": "https://S3.Example.org:443", "client_kwargs": {"region_name": "garage"}}),
        ("bucket", {"anon": True, "client_kwargs": {"endpoint_url": "http://host:80"}}),
        ("bucket", {"anon": True}),
    ],
)
def test_urls_are_those_of_botocore(bucket: str, options: dict[str, Any]) -> None:
    agree(bucket, options)


def test_variables_state_what_options_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "SESSION_TOKEN": "c", "DEFAULT_REGION": "ap-south-1"}
    for name, value in {**variables, "ENDPOINT_URL": "http://other", "ENDPOINT_URL_S3": LOCAL}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    agree("bucket", {"client_kwargs": {}})
    assert (sign_plain("bucket", "a", {}, 60) or "").startswith(f"{LOCAL}/bucket/a?")
    agree("bucket", {**KEYS, "client_kwargs": {}})  # the token of the variables does not belong to these keys


@pytest.mark.parametrize(
    ("bucket", "options", "wanted"),
    [
        ("buc.ket", KEYS, "https://s3.amazonaws.com/buc.ket/a?"),
        ("b--use1-az4--x-s3", {**KEYS, "anon": True}, "https://b--use1-az4--x-s3.s3express-use1-az4.us-east-1."),
        ("bucket", {**KEYS, "client_kwargs": {"region_name": "cn-north-1"}}, "https://bucket.s3.cn-north-1.amazonaws.com.cn/a?"),
        ("bucket", {**KEYS, "config_kwargs": {"s3": {"use_dualstack_endpoint": True}}}, "https://bucket.s3.dualstack.us-east-1."),
        ("bucket", {**KEYS, "endpoint_url": "http://localhost/under"}, "http://localhost/under/bucket/a?"),
    ],
)  # fmt: skip
def test_buckets_regions_and_endpoints_with_rules_of_their_own_are_left_to_botocore(
    bucket: str, options: dict[str, Any], wanted: str
) -> None:
    options = {"client_kwargs": {"region_name": "us-east-1"}, **options}
    assert sign_plain(bucket, "a", options, 60) is None
    found = sign_s3(f"s3://{bucket}/a", options, 60)
    assert found is not None
    assert found.startswith(wanted)


def test_variables_that_are_not_known_are_left_to_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**KEYS, "client_kwargs": {"region_name": "eu-west-3"}}
    assert sign_plain("bucket", "a", options, 60) is not None
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    assert sign_plain("bucket", "a", options, 60) is None
    assert (sign_s3("s3://bucket/a", options, 60) or "").startswith("https://bucket.s3.dualstack.eu-west-3.")


def test_files_of_the_user_are_left_to_botocore(bare: Path) -> None:
    options = {**KEYS, "endpoint_url": "http://localhost:9000", "client_kwargs": {"region_name": "eu-west-2"}}
    assert sign_plain("bucket", "a", options, 60) is not None
    (bare / "config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    assert sign_plain("bucket", "a", options, 60) is None
    assert (sign_s3("s3://bucket/a", options, 60) or "").startswith("http://bucket.localhost:9000/a?")
