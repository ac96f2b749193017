"""A real browser for tests: headless Chromium, controlled by its DevTools protocol.

The protocol uses a pipe, so that neither a driver nor a port is needed.
"""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests import waiting

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    # Chromium requires this option if it runs as root. It is safe, because the pages are our own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
)


class Tab:
    """An open page and its problems.

    Attributes:
        problems: Console errors and warnings, exceptions, and network requests.
    """

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        return self._browser.call(method, session=self._session, **params)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        return waiting.wait_for(
            lambda: self.evaluate(expression), told=lambda: f"{expression}: {self.problems}"
        )

    def point_at(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Move the mouse to a point of an element; `x` and `y` are fractions of its size."""
        self._mouse("mouseMoved", self._place(selector, x, y))

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag the mouse over an element; `start` and `end` are fractions of its width."""
        self._mouse("mousePressed", self._place(selector, start), button="left", clickCount=1)
        self._mouse("mouseMoved", self._place(selector, end), button="left")
        self._mouse("mouseReleased", self._place(selector, end), button="left", clickCount=1)

    def double_click(self, selector: str) -> None:
        """Double-click the middle of an element."""
        place = self._place(selector)
        for count in (1, 2):
            for event in ("mousePressed", "mouseReleased"):
                self._mouse(event, place, button="left", clickCount=count)

    def press(self, key: str) -> None:
        """Press a key."""
        for event in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=event, key=key)

    def _place(self, selector: str, x: float = 0.5, y: float = 0.5) -> dict[str, float]:
        box = self.evaluate(
            f"(() => {{ const node = document.querySelector({selector!r});"
            "node.scrollIntoView({block: 'center'}); const box = node.getBoundingClientRect();"
            "return [box.x, box.y, box.width, box.height]; })()"
        )
        return {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}

    def _mouse(self, event: str, place: dict[str, float], **how: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=event, **place, **how)

    def screenshot(self, path: str | os.PathLike[str]) -> None:
        """Save the whole page as a PNG file."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Record the problem that a protocol event reports, if any."""
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:")):
                self.problems.append(f"asked the network for {url}")


class Browser:
    """A running Chromium process."""

    def __init__(self, command: list[str]) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Chromium reads from file descriptor 3 and writes to file descriptor 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._last_id = 0
        self._tabs: dict[str, Tab] = {}
        self._seen: set[tuple[str, str]] = set()

    def open(self, path: str | os.PathLike[str], width: int = 1280, *, dark: bool = False) -> Tab:
        """Open a file in a viewport of the given width and wait until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        answer = tab.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        assert "errorText" not in answer, answer["errorText"]
        while (session, "Page.loadEventFired") not in self._seen:
            self._take(self._receive())
        # Wait until the page has been painted.
        tab.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        return tab

    def call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol and return its result."""
        self._last_id += 1
        number = self._last_id
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != number:
                self._take(answer)
            elif "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            else:
                return dict(answer["result"])

    def close(self) -> None:
        """Close the browser and wait until its process has ended."""
        with contextlib.suppress(OSError):
            os.write(self._out, b'{"id":0,"method":"Browser.close"}\0')
        os.close(self._out)
        try:
            self._process.wait(waiting.SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def _take(self, message: dict[str, Any]) -> None:
        session, method = message.get("sessionId", ""), message.get("method", "")
        self._seen.add((session, method))
        if session in self._tabs:
            self._tabs[session].note(method, message["params"])

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + waiting.SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(self._in, 1 << 20) if ready else b""
            if not read:
                raise AssertionError("Chromium does not answer.")
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Yield a browser, or skip the test if none is installed."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser([found, *_FLAGS, f"--user-data-dir={profile}"])
        try:
            yield browser
        finally:
            browser.close()
