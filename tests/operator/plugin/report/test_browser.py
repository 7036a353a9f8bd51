"""The page in a headless Chromium: on a phone, in the dark and in print."""

import re
import struct
import zlib

import pytest

from checks.harness.devtools import browse
from specdecode_operator.plugin.report.gathered import Gathered
from specdecode_operator.plugin.report.history import from_activity
from specdecode_operator.plugin.report.view import render_page, report_page

WIDE = "x" * 300

OVERFLOWING = """
[...document.querySelectorAll('body, body *')]
  .filter(each => !each.closest('.table') || each.matches('.table'))
  .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(each => each.tagName + ' ' + each.textContent.slice(0, 40))
"""
CUT_TEXTS = """
[...document.querySelectorAll('svg')].flatMap(svg => [...svg.querySelectorAll('text')]
  .filter(text => {
    const box = text.getBBox(), view = svg.viewBox.baseVal;
    return box.x < 0 || box.y < 0
      || box.x + box.width > view.width || box.y + box.height > view.height;
  })
  .map(text => svg.querySelector('title').textContent + ': ' + text.textContent))
"""
OVERLAPPING = """
[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')]
    .filter(each => each.textContent).map(each => [each, each.getBBox()]);
  return boxes.flatMap(([one, a], index) => boxes.slice(index + 1)
    .filter(([_, b]) => a.x < b.x + b.width && b.x < a.x + a.width)
    .filter(([_, b]) => a.y + 3 < b.y + b.height && b.y + 3 < a.y + a.height)
    .map(([other]) => one.textContent + ' / ' + other.textContent));
})
"""
CONTRAST = """
(() => {
  const parse = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
  const light = rgb => rgb.map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const back = light(parse(getComputedStyle(document.body).backgroundColor));
  return ['p', 'dt', 'th', 'a', 'svg text', 'svg .line', 'svg .bar'].map(name => {
    const style = getComputedStyle(document.querySelector(name));
    const isLine = name === 'svg .line', isFilled = name.startsWith('svg');
    const colour = isLine ? style.stroke : isFilled ? style.fill : style.color;
    return [name, ratio(light(parse(colour)), back)];
  });
})()
"""


@pytest.fixture
def written(example, now, activity, advice, totals, trial, turns, tmp_path):
    """A page with everything, in which texts are long and one of them is hostile."""
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": WIDE,
        "message": f"{WIDE} <script>x</script>",
    }
    status = {
        "activity": activity(), "recommendation": advice, "conditions": [condition],
        "effective": {"reason": "Promoted", "configHash": WIDE, "revision": WIDE, "message": WIDE},
    }  # fmt: skip
    arm = {"configHash": WIDE, "requests": 2_000_000_000, "secondsPerToken": "0.0123456789"}
    trials = (
        trial("chat-a", turns(pairs=128, strata=24), message=WIDE, baseline=arm, candidate=arm),
        trial("chat-b", turns(pairs=1)),
        trial(WIDE[:253]),
    )
    resource = example() | {"status": status}
    given = Gathered(resource, now, trials, (), from_activity(status), totals)
    file = tmp_path / "report.html"
    file.write_bytes(render_page(report_page(given)).encode(errors="replace"))
    return file


@pytest.fixture
async def tab(debian_program, tmp_path, written):
    folder = tmp_path / "profile"
    folder.mkdir()
    async with browse(debian_program("/usr/bin/chromium"), folder) as opened:
        await opened.open(written.as_uri())
        yield opened


def pixels(png):
    """Width, height and the colour of the first pixel of a PNG without interlacing."""
    width, height = struct.unpack(">II", png[16:24])
    data, at = b"", 8
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        if kind == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += 12 + size
    first = zlib.decompress(data)[
        1:4
    ]  # the filter of the first line adds nothing to its first pixel
    return width, height, tuple(first)


async def test_the_page_on_a_phone_and_on_a_screen_overflows_nowhere(tab):
    for width in (320, 390, 768, 1400):
        await tab.look(width)
        assert await tab.value("document.documentElement.scrollWidth") == width
        assert await tab.value(OVERFLOWING) == []
    assert await tab.value("document.querySelectorAll('svg').length") == 9


async def test_labels_of_plots_are_whole_and_apart(tab):
    await tab.look(390)
    assert await tab.value(CUT_TEXTS) == []
    assert await tab.value(OVERLAPPING) == []
    smallest = await tab.value(
        "Math.min(...[...document.querySelectorAll('svg text')]"
        ".map(each => each.getBoundingClientRect().height))"
    )
    assert smallest > 9.0


async def test_light_and_dark_differ_and_both_have_contrast(tab):
    colours = set()
    for scheme in ("light", "dark"):
        await tab.look(390, scheme=scheme)
        *_, colour = pixels(await tab.screenshot())
        colours.add(colour)
        for name, ratio in await tab.value(CONTRAST):
            assert ratio >= (1.8 if name == "svg .bar" else 4.5), (scheme, name)
    assert colours == {(255, 255, 255), (13, 17, 23)}


async def test_a_screenshot_contains_the_whole_page(tab):
    await tab.look(390)
    width, height, _ = pixels(await tab.screenshot())
    assert width == 390
    assert height == await tab.value("document.documentElement.scrollHeight")


async def test_print_is_light_and_has_every_plot_and_every_row(tab):
    await tab.look(720, medium="print", scheme="dark")
    assert (
        await tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    rows = "[...document.querySelectorAll('tbody tr')]"
    assert (
        await tab.value(f"{rows}.filter(each => each.getBoundingClientRect().height < 5).length")
        == 0
    )
    assert await tab.value(OVERFLOWING) == []
    broken = await tab.value(
        "[...document.querySelectorAll('svg')]"
        ".filter(each => getComputedStyle(each).breakInside !== 'avoid' "
        "|| each.getBoundingClientRect().height > 900).length"
    )
    assert broken == 0
    printed = await tab.pdf()
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type /Page\b", printed)) > 3


async def test_there_is_no_script_no_error_and_no_request(tab):
    await tab.look(390)
    assert await tab.value("document.scripts.length") == 0
    assert tab.messages == []
    assert tab.requests == []


async def test_the_accessibility_tree_has_a_name_and_a_description_for_each_plot(tab):
    nodes = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
    images = [each for each in nodes if each.get("role", {}).get("value") == "image"]
    assert len(images) == 9
    assert all(each["name"]["value"] for each in images)
    assert all(each["description"]["value"] for each in images)
    assert sum(each.get("role", {}).get("value") == "table" for each in nodes) >= 10
