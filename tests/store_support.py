"""Object stores for tests: a folder of this machine as ``file://``, and a server of S3 as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BESIDE = Path(sys.prefix) / "beside-s3"  # where scripts/setup.sh installs the server

Store = Callable[[str], str]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[int]:
    """The port of an S3 server."""
    if not BESIDE.is_dir():
        pytest.skip("no S3 server: scripts/setup.sh test installs it")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env={**os.environ, "PYTHONPATH": str(BESIDE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            assert started.poll() is None
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port
    finally:
        started.kill()
        started.wait()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Makes the URI of a name."""
    if request.param == "file":
        return lambda name: f"file://{tmp_path}/store/{name}"
    return bucket_of(request.getfixturevalue("s3_server"), f"b{os.getpid()}-{abs(hash(str(tmp_path))):x}")


def bucket_of(port: int, bucket: str) -> Store:
    """Makes a bucket, and what makes the URI of a name in it."""
    from pyarrow.fs import FileSystem

    options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{port}"
    made, _ = FileSystem.from_uri(f"s3://key:secret@{bucket}?{options}&allow_bucket_creation=true")
    made.create_dir(bucket)
    return lambda name: f"s3://key:secret@{bucket}/{name}?{options}"
