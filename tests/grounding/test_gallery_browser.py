"""The page in a browser: filters, keys, lazy images, and nothing fetched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chromium import Chromium
from gallery_data import HOSTILE, Grounding, small_grounding

SHOWN = (
    "[...document.querySelectorAll('.card:not([hidden]) h2')].map(h => h.firstChild.data.trim())"
)
COUNT = "document.querySelector('output').value"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return small_grounding(tmp_path_factory.mktemp("page")).page()


@pytest.fixture
def page(browser, written):
    browser.requests.clear()
    browser.messages.clear()
    browser.open(written)
    return browser


def keep(page: Chromium, name: str) -> None:
    """Save a screenshot to SIGHTLINE_SCREENSHOTS, for manual inspection."""
    if folder := os.environ.get("SIGHTLINE_SCREENSHOTS"):
        page.screenshot(Path(folder) / f"{name}.png")


def fill(page: Chromium, name: str, value: str) -> None:
    page.run(
        f"(() => {{ const e = document.querySelector('[name={name}]'); e.value = {value!r};"
        " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    page.settle()


def click(page: Chromium, element: str) -> None:
    page.run(f"document.querySelector('{element}').click()")
    page.settle()


def places(page: Chromium) -> list[str]:
    """Positions of the first photograph and its overlay."""
    where = "JSON.stringify(document.querySelector('{}').getBoundingClientRect())"
    return [page.run(where.format(what)) for what in (".photo", ".frame svg")]


def test_nothing_is_fetched_and_captions_with_markup_are_text(page, written):
    fetched = [url for url in page.requests if not url.startswith("data:")]
    assert fetched == [written.resolve().as_uri()]
    assert page.messages == []
    assert page.run("window.hacked") is None
    shown = page.run(
        "(c => { c = c.cloneNode(true); c.querySelectorAll('sup').forEach(s => s.remove());"
        " return c.textContent; })(document.querySelectorAll('.card')[1].querySelector('.caption'))"
    )
    assert shown == HOSTILE
    assert page.run("document.querySelectorAll('.caption script, .caption img').length") == 0


def test_photographs_and_masks_are_aligned_at_any_width(page):
    assert page.run("document.querySelector('.photo').naturalWidth") == 384
    photo, overlay = places(page)
    assert photo == overlay
    assert page.run("document.querySelectorAll('.cutout img')[0].naturalHeight") == 112
    # the box of the first phrase, 40 to 180 of 400 pixels across
    left, width = page.run(
        "(b => [b.x, b.width])(document.querySelector('[data-number=\"1\"] .box').getBBox())"
    )
    assert (left, width) == pytest.approx((40 * 0.96, 140 * 0.96), abs=0.02)
    keep(page, "light")
    page.prefer("dark")
    keep(page, "dark")
    page.resize(480, 1000)
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 480
    photo, overlay = places(page)
    assert photo == overlay
    keep(page, "narrow")
    page.resize(1300, 1000)
    page.prefer("light")


def test_filters_by_phrase_score_and_reason(page):
    assert page.run(COUNT) == "3 images, 8 phrases, 4 dropped"
    fill(page, "phrase", "HAT")
    assert page.run(SHOWN) == ["plain.jpg", "wrong.jpg"]  # a hat, and "what"
    fill(page, "phrase", "a small")
    assert page.run(SHOWN) == ["plain.jpg"]
    faded = (
        "[...document.querySelectorAll('.cutouts li:not(.faded) .phrase')].map(e => e.textContent)"
    )
    assert page.run(faded) == ["a small dog"]
    fill(page, "phrase", "")
    fill(page, "least", "0.6")
    fill(page, "most", "0.85")
    assert page.run(COUNT) == "2 images, 3 phrases"
    keep(page, "filtered")
    fill(page, "least", "")
    fill(page, "most", "")
    fill(page, "reason", "reason ambiguous")
    assert page.run(SHOWN) == ["plain.jpg"]
    assert page.run("document.querySelector('[open] .caption').textContent").startswith("two")
    fill(page, "reason", "dropped")
    assert page.run(COUNT) == "3 images, 0 phrases, 4 dropped"
    fill(page, "phrase", "nowhere at all")
    assert page.run(SHOWN) == []
    assert not page.run("document.getElementById('nothing').hidden")
    click(page, "[type=reset]")
    assert page.run(COUNT) == "3 images, 8 phrases, 4 dropped"


def test_everything_works_from_the_keyboard(page):
    focused = "document.activeElement.name ?? document.activeElement.id"
    page.press("/")
    assert page.run(focused) == "phrase"
    for key in "dog":
        page.press(key)
    page.settle()
    assert page.run(SHOWN) == ["plain.jpg"]
    seen = []
    for _ in range(6):
        page.press("Tab")
        seen.append(page.run("document.activeElement.name || document.activeElement.type"))
    assert seen == ["least", "most", "reason", "masks", "boxes", "reset"]
    page.run("document.activeElement.blur()")
    click(page, "[type=reset]")
    page.press("j")
    page.press("j")
    assert page.run(focused) == "i1"
    page.press("k")
    assert page.run(focused) == "i0"
    page.press("m")
    hidden = "getComputedStyle(document.querySelector('.mask')).visibility"
    assert page.run(hidden) == "hidden"
    page.press("Tab")  # into the card: its open caption
    assert page.run("document.activeElement.tagName") == "SUMMARY"


def test_another_caption_draws_its_own_objects(page):
    drawn = (
        "[...document.querySelectorAll('.card:first-child g[data-caption]')]"
        ".map(g => getComputedStyle(g).display !== 'none')"
    )
    assert page.run(drawn) == [True, False]
    click(page, ".card:first-child details:not([open]) summary")
    assert page.run(drawn) == [False, True]
    assert page.run("document.querySelectorAll('.card:first-child [open]').length") == 1


def test_numbers_can_all_be_read(browser, tmp_path):
    made = Grounding(tmp_path)
    corners = [(5, 5), (5, 5), (8, 9), (150, 60), (150, 60), (150, 61), (285, 2), (290, 2)]
    corners += [(160, 40), (0, 0), (299, 199), (140, 62)]
    words = [f"thing{i}" for i in range(len(corners))]
    made.image("one.png", 300, 200, " ".join(words))
    for word, (x, y) in zip(words, corners, strict=True):
        box = x, y, min(x + 90, 300), min(y + 70, 200)
        made.phrase("one.png", " ".join(words), word, box)
    made.write()
    browser.open(made.page())
    keep(browser, "numbers")
    rect = "(e => (r => [r.left, r.top, r.right, r.bottom])(e.getBoundingClientRect()))"
    badges = browser.run(f"[...document.querySelectorAll('.badge > rect')].map({rect})")
    left, top, right, bottom = browser.run(f"{rect}(document.querySelector('.photo'))")
    assert len(badges) == 12
    for i, (x0, y0, x1, y1) in enumerate(badges):
        assert left - 1 <= x0 < x1 <= right + 1
        assert top - 1 <= y0 < y1 <= bottom + 1
        for u0, v0, u1, v1 in badges[:i]:
            # the outline of a number, half a pixel wide, may touch its neighbour's
            assert x0 > u1 - 2 or u0 > x1 - 2 or y0 > v1 - 2 or v0 > y1 - 2
    order = "[...document.querySelectorAll('g[data-caption] > *')].map(e => e.classList[1])"
    kinds = browser.run(order)
    assert kinds.index("badge") > max(i for i, kind in enumerate(kinds) if kind != "badge")


def test_distant_images_load_lazily(browser, tmp_path):
    made = Grounding(tmp_path)
    for i in range(50):
        made.image(f"{i:02}.png", 300, 200, "a thing")
        made.phrase(f"{i:02}.png", "a thing", "thing", (10, 10, 290, 190))
    made.write()
    browser.open(made.page())
    holding = "[...document.querySelectorAll('.photo')].map(p => p.hasAttribute('src'))"
    first = browser.run(holding)
    assert (first[0], first[-1]) == (True, False)
    browser.run("window.scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    last = browser.run(holding)
    assert (last[0], last[-1]) == (False, True)
