"""The script of the console's pages, in Node.js with a page that does nothing without events."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files

import pytest

NODE = shutil.which("node")
PAGE = """
const asked = [];
let tick;
const nothing = { hidden: true, dataset: {}, addEventListener() {} };
const page = {
  document: {
    ...nothing,
    hidden: false,
    documentElement: nothing,
    getElementById: (id) => (id === "tail" ? null : nothing),
    querySelector: () => null,
    querySelectorAll: () => [],
  },
  location: { href: "/search?q=x", reload() {} },
  navigator: {},
  fetch: (address) => new Promise((resolve) => asked.push({ address, resolve })),
  setInterval: (work) => (tick = work),
};
for (const [name, value] of Object.entries(page))
  Object.defineProperty(globalThis, name, { value, configurable: true });
"""
TICKS = """
(async () => {
  for (const _ of "abc") tick();
  console.log(asked.length);
  asked[0].resolve({ ok: false });
  await new Promise((resolve) => setTimeout(resolve));
  tick();
  console.log(asked.length);
})();
"""


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed")
def test_a_page_that_is_slow_was_asked_for_again_before_it_had_answered() -> None:
    script = (files("trovemq_console") / "static" / "console.js").read_text()
    ran = subprocess.run(
        [str(NODE), "-e", PAGE + script + TICKS], capture_output=True, text=True, check=True, timeout=240
    )
    assert ran.stdout.split() == ["1", "2"]
