"""What is said, and written to disk, of URIs that hold keys."""

from __future__ import annotations

import pytest

from outcrop.errors import ArgumentError
from outcrop.store.remote import RemoteFolder, with_options_only, without_keys


@pytest.mark.parametrize("secret", ["abc/SECRET", "a+b@SECRET", "SEC RET"])
def test_keys_in_a_uri_that_cannot_be_read_are_not_said(secret: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        RemoteFolder(f"s3://KEY:{secret}@bucket/path")
    assert "s3://bucket/path cannot be used: Cannot parse URI" in str(refused.value)
    for part in ("KEY", "abc", "SEC"):
        assert part not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "said", "stored"),
    [
        ("s3://KEY:SECRET@bucket/a@b?region=x", "s3://bucket/a@b", "s3://bucket/a@b?region=x"),
        ("hdfs://host:8020/user/a@b", "hdfs://host:8020/user/a@b", "hdfs://host:8020/user/a@b"),
        ("hdfs://me@host:8020/x", "hdfs://host:8020/x", "hdfs://me@host:8020/x"),
        ("gs://anonymous@bucket/x", "gs://bucket/x", "gs://anonymous@bucket/x"),
        (
            "abfs://box:PASSWORD@me.dfs.core.windows.net/x?client_secret=SECRET&tenant_id=t&client_id=c&enable_tls=1",
            "abfs://me.dfs.core.windows.net/x",
            "abfs://box@me.dfs.core.windows.net/x?enable_tls=1",
        ),
        (
            "abfs://box@me.dfs.core.windows.net/x?sv=2024&se=1&sig=SECRET",
            "abfs://me.dfs.core.windows.net/x",
            "abfs://box@me.dfs.core.windows.net/x",
        ),
    ],
)
def test_keys_are_neither_said_nor_written_and_names_stay(uri: str, said: str, stored: str) -> None:
    assert without_keys(uri) == said
    assert with_options_only(uri) == stored
