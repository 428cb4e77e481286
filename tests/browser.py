"""A headless Chromium for tests, driven through chromedriver's own protocol (WebDriver: JSON over HTTP).

Skips the test where Chromium or its driver is absent. Everything that the page asks for and says is on record:
``requests`` and ``console``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_START_SECONDS = 120
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root, which Chromium's sandbox refuses
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-color-profile=srgb",
)


class Browser:
    def __init__(self, address: str, session: str):
        self._base = f"{address}/session/{session}"

    def open(self, path: Path) -> None:
        """Opens a file; what was on record before is forgotten."""
        self.console(), self.requests()
        _call(f"{self._base}/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What JavaScript's ``return`` gives."""
        return _call(f"{self._base}/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return _call(f"{self._base}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int = 800) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def console(self) -> list[str]:
        """Messages since the last call."""
        return [entry["message"] for entry in _call(f"{self._base}/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call."""
        messages = [
            json.loads(e["message"])["message"]
            for e in _call(f"{self._base}/se/log", {"type": "performance"})
        ]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path) -> Path:
        """The whole page as PNG."""
        answer = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def pdf(self) -> bytes:
        answer = self.devtools("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(answer["data"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the block."""
    driver = shutil.which("chromedriver")
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    if driver is None or binary is None:
        pytest.skip("Chromium or chromedriver is absent: apt-get install chromium chromium-driver")
    folder = tempfile.mkdtemp(prefix="outcrop-chromium-")
    log = Path(folder) / "driver.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [driver, "--port=0"], stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "HOME": folder}
        )
    try:
        address = f"http://127.0.0.1:{_port(process, log)}"
        options = {"binary": binary, "args": [*_ARGUMENTS, f"--user-data-dir={folder}/profile"]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = _call(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(address, session)
        finally:
            _call(f"{address}/session/{session}", None, "DELETE")
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"successfully on port (\d+)", log.read_text(errors="replace")):
            return int(found[1])
        time.sleep(0.05)
    raise AssertionError(f"chromedriver did not start: {log.read_text(errors='replace')}")


def _call(address: str, content: dict[str, Any] | None, method: str = "POST") -> Any:
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(
                f"{method} {address}: {error.read().decode(errors='replace')[:2000]}"
            ) from None
