"""The report in a real browser, where this machine has Chromium: driven by its own protocol over two pipes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.report.html import REPORT_NAME
from tests.builds import run_plain, write_jsonl
from tests.corpus import english, write_inputs

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


class Browser:
    """A headless Chromium that shows one page."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (read_commands, self._commands), (self._answers, write_answers) = os.pipe(), os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        pipes = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'  # it reads commands from 3 and answers to 4
        self._process = subprocess.Popen(
            ["bash", "-c", pipes, CHROMIUM, *flags],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._buffer, self._number = b"", 0
        self._session: str | None = None
        self.said: list[dict[str, Any]] = []  # what the page wrote to the console, and what failed in it
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Log", "Runtime", "Page", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its answer. Events before it are noted."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        command |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                data = os.read(self._answers, 1 << 16)
                assert data, "the browser ended"
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.said.append(message)

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": {"windowsVirtualKeyCode": 9}, "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"}}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, **codes[key])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    inputs = write_inputs(folder / "in", 150)
    long = folder / "in" / "long.jsonl"
    words = english(5, 120).split()
    texts = [" ".join(words), " ".join([*words[:40], "changed", *words[41:]]), "x" * 5_000]
    write_jsonl(long, ({"id": "i" * 300, "text": text} for text in texts))
    run_plain([f"{'a-long-name-of-a-source' * 3}={long}", *inputs], folder / "out", rules="gopher,fineweb")
    browser = Browser(folder / "profile")
    browser.ask("Page.navigate", url=f"file://{folder / 'out' / REPORT_NAME}")
    browser.evaluate("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")
    yield browser
    browser.close()


def test_the_console_stays_empty_and_only_the_page_itself_is_loaded(browser: Browser) -> None:
    methods = [message["method"] for message in browser.said]
    assert not {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"} & set(methods)
    requests = [
        each["params"]["request"]["url"] for each in browser.said if each["method"] == "Network.requestWillBeSent"
    ]
    assert len(requests) == 1
    assert requests[0].endswith(REPORT_NAME)
    # What differs between duplicates is marked, and the rows of documents add up to those kept.
    assert "changed" in browser.evaluate("[...document.querySelectorAll('mark')].map(each => each.textContent)")
    cells = browser.evaluate(
        "[...document.querySelector('table').rows].slice(1).map(row => Number(row.cells[1].textContent.replaceAll(',', '')))"
    )
    assert sum(cells[:-1]) == cells[-1] > 0


@pytest.mark.parametrize("width", [360, 768, 1400])
def test_no_width_scrolls_sideways_even_with_everything_open(browser: Browser, width: int) -> None:
    browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    widest = browser.evaluate("document.documentElement.scrollWidth")
    browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false })")
    assert widest <= width


@pytest.mark.parametrize(("scheme", "page"), [("light", "rgb(245, 246, 248)"), ("dark", "rgb(18, 23, 29)")])
def test_all_text_stands_out_from_what_it_is_on(browser: Browser, scheme: str, page: str) -> None:
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == page
    faint = browser.evaluate("""(() => {
      const light = colour => colour.map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, k) => sum + c * [.2126, .7152, .0722][k], 0)
      const parts = text => text.match(/[\\d.]+/g).map(Number)
      const behind = node => { for (; node; node = node.parentElement) {
        const [r, g, b, a = 1] = parts(getComputedStyle(node).backgroundColor); if (a == 1) return [r, g, b] } }
      return [...document.querySelectorAll('h1,h2,h3,p,td,th,summary,pre,code,span,b,.card')].filter(node => {
        const [one, two] = [parts(getComputedStyle(node).color).slice(0, 3), behind(node)].map(light)
        return (Math.max(one, two) + .05) / (Math.min(one, two) + .05) < 4.5 }).map(node => node.outerHTML.slice(0, 80)) })()""")
    assert faint == []


def test_every_fold_is_reached_by_tab_and_opens_by_enter(browser: Browser) -> None:
    browser.ask("Emulation.setDeviceMetricsOverride", width=1200, height=800, deviceScaleFactor=1, mobile=False)
    browser.evaluate(
        "document.activeElement.blur(); document.querySelectorAll('details').forEach(e => { e.open = false })"
    )
    folds = browser.evaluate("document.querySelectorAll('summary').length")
    assert folds > 30
    for _ in range(3 * folds):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.matches('details:not([open]) > summary')"):
            assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            browser.press("Enter")
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") == 0
