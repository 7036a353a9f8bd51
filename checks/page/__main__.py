"""`python -m checks.page [--seconds 60] [--screenshot FILE]`: the page in Debian's Chromium.

Accessibility by axe-core, light and dark, on a phone and on a screen, after an answer; and how
busy a stream of 200 tokens per second keeps the page. The last line is JSON; the exit status is 1
if a limit is exceeded.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks.fuzz.served import serve_example
from checks.harness.devtools import Tab, browse
from checks.harness.installation import PeerUnavailable
from checks.page.axe import axe_program, violations

CHROMIUM = "/usr/bin/chromium"
QUESTION = "Count from one to twenty."
LOOKS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
MAX_BUSY, MAX_NODES, TOKENS_PER_S = 0.25, 5000, 200
IDLE = "!document.getElementById('send').disabled && document.querySelector('.assistant') !== null"
ASK = f"""
document.getElementById('input').value = {QUESTION!r};
document.getElementById('form').requestSubmit();
"""
# Events as an engine sends them, at the rate of a fast one, through the page's own reader.
STREAM = """
(async () => {
  const encoder = new TextEncoder(), answer = new Answer();
  const drawing = setInterval(() => answer.draw(), DRAW_MS);
  let sent = 0;
  const source = new ReadableStream({
    async pull(controller) {
      await new Promise((ready) => setTimeout(ready, 5));
      const due = Math.floor((performance.now() - begin) * %(rate)d / 1000);
      for (; sent < due; sent += 1) {
        const speculation = {tokens: 1, accepted_tokens: sent %% 3 ? 1 : 0};
        const event = {choices: [{delta: {content: ' word' + sent}}], speculation};
        controller.enqueue(encoder.encode('data: ' + JSON.stringify(event) + '\\n\\n'));
      }
      if (performance.now() - begin > %(milliseconds)d) controller.close();
    },
  });
  const begin = performance.now();
  for await (const event of eventsOf(new Response(source))) answer.take(event);
  clearInterval(drawing);
  answer.draw();
  return [answer.tokens, document.querySelectorAll('*').length];
})()
"""


def main() -> int:
    """Run the checks and print what was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="page", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--screenshot", type=Path)
    options = parser.parse_args()
    try:
        axe_program()
    except PeerUnavailable as reason:
        parser.error(str(reason))
    with tempfile.TemporaryDirectory() as folder, serve_example(Path(folder)) as engine:
        profile = Path(folder) / "profile"
        profile.mkdir()
        url = f"http://127.0.0.1:{engine.port}/"
        found = asyncio.run(_check(url, profile, options.seconds, options.screenshot))
    print(json.dumps(found))
    is_right = (
        not any(found["violations"].values())
        and found["busy_share"] <= MAX_BUSY
        and found["nodes"] <= MAX_NODES
        and not found["messages"]
    )
    return 0 if is_right else 1


async def _check(url: str, profile: Path, seconds: int, screenshot: Path | None) -> dict[str, Any]:
    async with browse(CHROMIUM, profile) as tab:
        found = {}
        for width, scheme in LOOKS:
            await tab.look(width, scheme=scheme)
            await tab.open(url)
            await tab.value(ASK)
            await tab.wait(IDLE)
            found[f"{width} px, {scheme}"] = await violations(tab)
        if screenshot is not None:
            await tab.look(1100, 760)
            await tab.open(url)
            await tab.value(ASK)
            await tab.wait(f"{IDLE} && points.length > 2 && points.some(each => each.speed)")
            screenshot.write_bytes(await tab.screenshot())
        busy_share, tokens, nodes = await _stream(tab, url, seconds)
        return {
            "violations": found,
            "busy_share": round(busy_share, 3),
            "tokens": tokens,
            "nodes": nodes,
            "messages": tab.messages,
        }


async def _stream(tab: Tab, url: str, seconds: int) -> tuple[float, int, int]:
    """Return the share of time that the main thread was busy, the tokens, and the nodes."""
    await tab.open(url)
    await tab.call("Performance.enable", timeDomain="timeTicks")
    before = await _busy_s(tab)
    numbers = {"rate": TOKENS_PER_S, "milliseconds": 1000 * seconds}
    tokens, nodes = await tab.value(STREAM % numbers, timeout_s=2 * seconds + 60)
    return (await _busy_s(tab) - before) / seconds, tokens, nodes


async def _busy_s(tab: Tab) -> float:
    metrics = (await tab.call("Performance.getMetrics"))["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


if __name__ == "__main__":
    sys.exit(main())
