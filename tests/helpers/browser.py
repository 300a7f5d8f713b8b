"""A real browser that tests drive: Chromium without a window, by its protocol over two pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "about:blank")
_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Tab": 9, "Escape": 27}


class Browser:
    """A page of the browser."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of = open(to, "wb", buffering=0), open(of, "rb", buffering=0)  # noqa: SIM115 (closed with the browser)
        self._buffer, self._session, self._number = b"", {}, 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Open a file in a window of some width."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self._call("Page.navigate", url=f"file://{path}")

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + 20
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.02)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press and release keys, as a person does."""
        for key in keys:
            what = {"key": key, "windowsVirtualKeyCode": _KEYS.get(key, ord(key[0].upper())), "modifiers": 8 * shift}
            text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
            self._call("Input.dispatchKeyEvent", type="keyDown", **what, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **what)

    def picture(self, path: Path) -> None:
        """Save what the window shows."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                part = os.read(self._of.fileno(), 1 << 20)
                assert part, "the browser ended"
                self._buffer += part
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "result" in answer, answer
                result: dict[str, Any] = answer["result"]
                return result


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and end it at the end of the block."""
    (its_in, to), (of, its_out) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
        command = ["bash", "-c", shell, str(CHROMIUM), *_FLAGS[:-1], f"--user-data-dir={profile}", _FLAGS[-1]]
        process = subprocess.Popen(command, pass_fds=(its_in, its_out), stderr=subprocess.DEVNULL)
        os.close(its_in)
        os.close(its_out)
        try:
            yield Browser(to, of)
        finally:
            process.kill()
            process.wait()
