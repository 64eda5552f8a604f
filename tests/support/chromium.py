"""A headless Chromium, driven over its DevTools pipe: JSON messages, each ends with a zero byte.

The process reads commands from descriptor 3, and writes answers and events to 4. Events of the page that mean
a fault (an exception, a refusal by the content policy, a failed load) are kept in `faults`. Where there is no
Chromium, apt installs it; where it cannot, tests are skipped with its words.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

INSTALL_SECONDS_MAX = 120
STEP_SECONDS_MAX = 240
FAULTS = frozenset({"Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed"})
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One page of the browser."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.faults: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer or method == "Runtime.evaluate", answer
                result: dict[str, Any] = answer.get("result", {})  # none of a page that is being left
                return result

    def _next(self) -> dict[str, Any]:
        """The next answer or event; events are noted."""
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if found.get("method") in FAULTS:
            self.faults.append(json.dumps(found["params"]))
        return found

    def go(self, url: str) -> None:
        """Opens a page and waits until it is loaded."""
        self.call("Page.navigate", url=url)  # answers when the new page has begun
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return result.get("result", {}).get("value")

    def until(self, script: str) -> None:
        """Waits until the expression is true."""
        give_up = time.monotonic() + STEP_SECONDS_MAX
        while not self.run(script):
            assert time.monotonic() < give_up, script
            time.sleep(0.02)

    def arrive(self, title: str) -> None:
        """Waits for a page that a link or a form leads to: its title begins so, and all of it is there."""
        self.until(f"document.readyState === 'complete' && document.title.startsWith({json.dumps(title)})")

    def press(self, key: str) -> None:
        """A key of the keyboard."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        codes = {"Enter": 13, "ArrowDown": 40, "ArrowUp": 38}
        code = codes.get(key, 0)
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, width: int = 1440, height: int = 1000) -> None:
        """Writes the page as a PNG file."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@cache
def program() -> tuple[str, str]:
    """The browser's path; "" and the reason where there is none to be had."""
    with (Path(tempfile.gettempdir()) / "trovemq-chromium.lock").open("w") as lock:  # workers of one run
        fcntl.flock(lock, fcntl.LOCK_EX)
        reason = "" if _installed() else _install()
        return _installed(), reason


def _installed() -> str:
    return shutil.which("chromium") or shutil.which("chromium-browser") or ""


def _install() -> str:
    """Why it could not be; an empty text where it was."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "neither installed, nor is this root of a system with apt"
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        try:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            command = ["apt-get", "-q", *words]
            subprocess.run(
                command, env=environment, check=True, capture_output=True, timeout=INSTALL_SECONDS_MAX
            )
        except subprocess.CalledProcessError as error:
            return f"apt-get {words[0]}: {error.stderr.decode(errors='replace').strip()[-300:]}"
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} took longer than {INSTALL_SECONDS_MAX} s"
    return ""


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A page of a browser with an empty profile, which ends with the block. Skips a test without one."""
    path, reason = program()
    if not path:
        pytest.skip(f"no Chromium: {reason}")
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    shell = f'exec "$0" "$@" 3<&{command_read} 4>&{answer_write}'
    process = subprocess.Popen(
        ["bash", "-c", shell, path, *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(command_read, answer_write),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(command_read)
    os.close(answer_write)
    try:
        page = Page(command_write, answer_read)
        yield page
        page.call("Browser.close")
    finally:
        process.terminate()
        process.wait(STEP_SECONDS_MAX)
        os.close(command_write)
        os.close(answer_read)
