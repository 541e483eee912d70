"""The page in a real browser, while the log is under load. Without a Chromium on the machine these tests are skipped, also in CI."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page, async_playwright

from tests.locations import open_wal
from tests.operate.status.test_service import HOSTILE, TOKEN
from wal import BroadcastMessage, Delivery, Message, ResourceKey, WALAccesser, __version__
from wal.errors import HandlerFailedError

CHROMIUM: Final = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
VCHANNELS: Final = 1_000
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: the status page is not drawn; install Debian's chromium")


@contextlib.asynccontextmanager
async def drawn(log: WALAccesser, address: str, **options: Any) -> AsyncIterator[Page]:
    """Yields the page in a browser; any error in it fails the test."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = await (await browser.new_context(**options)).new_page()
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("console", lambda line: trouble.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: trouble.append(f"a dialog: {dialog.message}"))
        await page.goto(address)
        await page.wait_for_selector("#plots figure:nth-child(6)")
        await page.wait_for_selector("#ls tbody tr:nth-child(100)")
        await page.wait_for_selector("#cursors tbody td")
        await page.wait_for_selector("#broadcasts tbody td")
        yield page
        assert trouble == []
        await browser.close()


@pytest.fixture
async def log(data_dir: Path) -> AsyncIterator[WALAccesser]:
    async with open_wal(f"journal:{data_dir}") as log:
        await log.append_bulk([Message(f"orders {number:04}", b"x") for number in range(VCHANNELS)])
        await log.raw_append(Message(HOSTILE, b"x"))
        async with log.read("orders 0001", cursor="billing", follow=False) as scanner:
            await scanner.save()
        await log.broadcast().append(
            BroadcastMessage(vchannels=["a", "b"], payload=b"z", resource_keys=[ResourceKey("collection", "orders")])
        )

        async def load() -> None:
            while True:
                await asyncio.gather(*(log.raw_append(Message("orders 0001", bytes(500))) for _ in range(16)))
                await asyncio.sleep(0.01)

        loading = asyncio.ensure_future(load())
        yield log
        loading.cancel()
        await asyncio.wait((loading,))


async def test_page_is_drawn_under_load(log: WALAccesser) -> None:
    async with log.serve_status() as status, drawn(log, status.address, viewport={"width": 1100, "height": 900}) as page:
        assert "all is well" in await page.inner_text("#state")
        assert re.fullmatch(rf"release {re.escape(__version__)} · pid {os.getpid()} · up .+", await page.inner_text("#process"))
        assert await page.locator("#plots figure").count() == 6
        assert "billing" in await page.inner_text("#cursors")
        assert "collection/orders" in await page.inner_text("#broadcasts")
        await page.fill("#filter", "orders 09")
        await page.wait_for_selector("#ls tbody tr:first-child td:text-is('orders 0900')")
        await page.fill("#filter", "onerror")
        await page.wait_for_selector("#pages:text-is('1 to 1 of 1')")
        assert not await page.is_visible("#after"), "an only page has no next one"
        assert await page.locator("#ls td").first.text_content() == HOSTILE
        assert await page.locator("#ls img").count() == 0
        await page.fill("#filter", "")
        await page.wait_for_selector("#after:enabled")
        await page.click("#after")
        await page.wait_for_selector("#pages:has-text('101 to 200 of')")


async def test_ended_consumer_is_shown_and_redriven(log: WALAccesser) -> None:
    async def fail(delivery: Delivery) -> None:
        raise ValueError("the shop is closed")

    sent = await log.append("jobs", b"a")
    async with log.consume("jobs", fail, cursor="dying", attempts=1, dead_letter="dead") as dying:
        await dying.caught_up()
    ended = log.consume("jobs", fail, cursor="packing", attempts=1)
    with pytest.raises(HandlerFailedError):
        await ended.run()
    async with log.serve_status(token=TOKEN) as status, drawn(log, status.address) as page:
        await page.wait_for_selector("#state.bad:text-is('consumer packing has ended')")
        assert await page.locator("#consumers td.bad").first.text_content() == "ended"
        row = await page.inner_text("#consumers tbody")
        assert "ValueError: the shop is closed" in row
        assert str(sent.message_id) in row
        await page.fill("#letters", "dead")
        await page.click("#redrive button")
        await page.wait_for_selector("#redriven:has-text('enter the token above')")
        await page.fill("#token", TOKEN)
        await page.click("#login button")
        await page.click("#redrive button")
        await page.wait_for_selector("#redriven:text-is('1 appended again')")
        await ended.close()
        await page.wait_for_selector("#state:has-text('all is well')")
    assert await log.redrive("dead") == 0


@pytest.mark.parametrize("width", [360, 400, 1280])
async def test_no_column_is_clipped(log: WALAccesser, width: int) -> None:
    # The cells and tables that are wider than their drawn part.
    clipped = """[...document.querySelectorAll('td, th, .scroll')]
        .filter((e) => e.offsetParent !== null && e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 40))"""

    async def fail(delivery: Delivery) -> None:
        raise ValueError("a long text about " + "the shop that is closed, " * 8)

    await log.append("jobs", b"a")
    ended = log.consume("jobs", fail, cursor="packing", attempts=1)
    with pytest.raises(HandlerFailedError):
        await ended.run()
    async with log.serve_status() as status, drawn(log, status.address, viewport={"width": width, "height": 740}) as page:
        await page.wait_for_selector("#consumers td:text-is('ended')")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.evaluate(clipped) == []
        await page.wait_for_selector("#ls tbody tr:first-child td[data-label='last message']:text-matches('^2')")  # once it is counted


async def test_keyboard_and_screen_readers_find_everything(log: WALAccesser) -> None:
    # The names that a screen reader reads for everything that can be reached.
    NAMES = """[...document.querySelectorAll('a, button, input, [role=img], [role=region]')]
        .filter((e) => e.offsetParent !== null || e.tagName === 'svg')
        .map((e) => (e.ariaLabel || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent
            || e.textContent || e.labels?.[0]?.textContent || '').trim())"""

    async with log.serve_status() as status, drawn(log, status.address) as page:
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        names = await page.evaluate(NAMES)
        assert names
        assert all(names), "everything that can be reached has a name"
        for label in ("Filter by name", "Next page"):
            found = page.get_by_label(label) if label.startswith("Filter") else page.get_by_role("button", name=label)
            assert await found.count() == 1
        assert await page.locator("th:not([scope=col])").count() == 0
        assert await page.locator("h1").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_colours_have_contrast(log: WALAccesser, scheme: str) -> None:
    def luminance(colour: str) -> float:
        channels = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    async with log.serve_status() as status, drawn(log, status.address, color_scheme=scheme) as page:
        ink, paper = await page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 7
        assert (luminance(paper) > 0.5) is (scheme == "light")
