"""The page of a report in a browser: sorting, filter, seeds, figures, keyboard, nothing fetched."""

from __future__ import annotations

import json

import pytest
from invented_runs import UNTRAINED
from made_results import made_result

from train.evaluate.results import TaskResult
from train.report.figures import FAINT, INK, PLAIN
from train.report.scores import Comparison
from train.report.write import write_report

# run → similarity, alignment, uniformity, image retrieval at rank 1
STUDY = {
    "SimCSE": (8.7, 0.93, -1.68, None),
    "MCSE (CLIP)": (79.6, 0.23, -2.84, 24.0),
    "MCSE with shuffled images": (0.8, 0.20, -0.63, 0.4),
    "KDMCSE": (78.0, 0.19, -2.83, 22.0),
    "DALR": (62.4, 0.40, -1.77, 9.0),
}
TRAINED = UNTRAINED.model_copy(update={"untrained": False})
COMPARISON = Comparison("SimCSE", "MCSE (CLIP)", "MCSE with shuffled images")
SCORES = "document.querySelector('#scores table')"
NAMES = (
    "[...{}.querySelectorAll('tbody:not([hidden]) > tr:not(.seed) > th')]"
    ".map(th => th.innerText.split('\\n')[0].trim())"
)
HEADS = "[...{}.querySelectorAll('thead th')].find(th => th.innerText.trim().startsWith('{}'))"


def result(run, seed):
    similarity, alignment, uniformity, recall = STUDY[run]
    own = TaskResult(
        scores={
            "similarity": similarity + seed,
            "alignment": alignment + seed / 100,
            "uniformity": uniformity + seed / 100,
        },
        lower_is_better=("alignment", "uniformity"),
    )
    retrieval = TaskResult(
        title="Image–text retrieval",
        scores={"I2T R@1": None if recall is None else recall + seed / 10},
        reasons={"I2T R@1": "its objective projects no image features"} if not recall else {},
        references={"chance": {"I2T R@1": 0.33}},
    )
    log = [{"loss": 3.0, "dev": 0.0, "step": 20}, {"loss": 1.0, "dev": similarity, "step": 40}]
    return made_result(
        run,
        seed,
        tasks={"own": own, "retrieval": retrieval},
        parameters={
            "objective": {"weight": 1.0} if recall else {},
            "train": {"batch_size": 64, "schedule": "w" * 90},
        },
        features=(TRAINED,) if recall else (),
        training={"best_step": 40, "log": log},
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    results = [result(run, seed) for run in STUDY for seed in range(3)]
    write_report(results, out, "A study", comparisons=[COMPARISON])
    return out / "report.html"


@pytest.fixture
def page(browser, written):
    browser.requests.clear()
    browser.messages.clear()
    browser.prefer("light")
    browser.resize(1300, 1000)
    browser.open(written)
    return browser


def names(page, table=SCORES):
    return page.run(NAMES.format(table))


def sort_by(page, column, table=SCORES):
    """Click a heading; what the table then says about its order."""
    head = HEADS.format(table, column)
    page.run(f"{head}.querySelector('button').click()")
    return page.run(f"{head}.ariaSort")


def show_only(page, text):
    page.run(
        f"(e => {{ e.value = {json.dumps(text)}; e.dispatchEvent(new Event('input')); }})"
        "(document.querySelector('.filter input'))"
    )


def test_nothing_is_fetched_and_the_console_is_empty(page, written):
    page.prefer("dark")
    page.settle()
    fetched = [url for url in page.requests if not url.startswith("data:")]
    assert fetched == [written.resolve().as_uri()]
    assert page.messages == []


def test_a_script_or_picture_from_elsewhere_is_refused(page):
    page.run("window.hacked = 0")
    page.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.hacked = 1';"
        " document.body.append(s); const i = new Image(); i.src = 'http://127.0.0.1:9/x.png';"
        " document.body.append(i); })()"
    )
    page.settle()
    assert page.run("window.hacked") == 0
    assert sum("Content Security Policy" in each for each in page.messages) == 2


def test_a_heading_sorts_its_table_both_ways(page):
    given = list(STUDY)
    assert names(page) == given
    by_score = sorted(given, key=lambda run: -STUDY[run][0])
    assert sort_by(page, "similarity") == "descending"
    assert names(page) == by_score
    assert sort_by(page, "similarity") == "ascending"
    assert names(page) == by_score[::-1]
    assert sort_by(page, "run") == "ascending"
    assert names(page) == sorted(given, key=str.casefold)
    assert page.run(f"{SCORES}.querySelectorAll('[aria-sort]').length") == 1


def test_what_has_no_score_is_last_in_either_order(page):
    retrieval = "document.querySelectorAll('#scores table')[1]"
    for order in ("descending", "ascending"):
        assert sort_by(page, "I2T R@1", retrieval) == order
        assert names(page, retrieval)[-1] == "SimCSE"
        assert names(page, retrieval)[0] == ("MCSE (CLIP)" if order == "descending" else "chance")


def test_the_filter_hides_rows_and_columns_in_all_tables(page):
    show_only(page, "kdmcse, DALR")
    tables = "document.querySelectorAll('#scores table, #training table')"
    assert page.run(f"{tables}.length") == 3
    for number in range(3):
        assert names(page, f"{tables}[{number}]") == ["KDMCSE", "DALR"]
    heads = "[...document.querySelectorAll('#differences thead th')].filter(e => !e.hidden)"
    shown = page.run(f"{heads}.map(e => e.innerText.trim())")
    assert shown == ["task", "SimCSE (baseline)", "KDMCSE", "DALR"]
    cells = "document.querySelectorAll('#differences tbody tr:first-child > :not([hidden])').length"
    assert page.run(cells) == 3 * 4
    assert page.run("document.querySelector('.filter output').value") == "2 of 6 shown"
    show_only(page, "no such run")
    assert names(page) == []
    show_only(page, "")
    assert names(page) == list(STUDY)


def test_a_row_opens_its_seeds_and_keeps_them_when_sorted(page):
    row = f"[...{SCORES}.querySelectorAll('tbody')].find(e => e.dataset.run === 'DALR')"
    seeds = f"[...({row}).querySelectorAll('tr.seed')].map(r => r.checkVisibility())"
    assert page.run(seeds) == [False] * 3
    page.run(f"({row}).querySelector('button').click()")
    assert page.run(seeds) == [True] * 3
    assert page.run(f"({row}).querySelector('button').ariaExpanded") == "true"
    sort_by(page, "similarity")
    shown = page.run(f"[...({row}).querySelectorAll('tr.seed')].map(r => r.cells[2].innerText)")
    assert shown == ["62.40", "63.40", "64.40"]
    every = "[...document.querySelectorAll('tr.seed')].every(r => r.checkVisibility())"
    page.run("document.querySelector('[name=seeds]').click()")
    assert page.run(every)
    assert page.run("document.querySelector('[name=seeds]').innerText") == "Hide seeds"


def test_the_keyboard_reaches_headings_seeds_and_the_filter(page):
    seen = []
    for _ in range(20):
        page.press("Tab")
        seen.append(page.run("document.activeElement.closest('nav, form, thead, tbody')?.tagName"))
    assert list(dict.fromkeys(seen)) == ["NAV", "FORM", "THEAD", "TBODY"]
    outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.run(f"{HEADS.format(SCORES, 'similarity')}.querySelector('button').focus()")
    page.press(" ")
    assert names(page)[0] == "MCSE (CLIP)"


def test_every_section_that_should_has_its_figures(page):
    count = (
        "Object.fromEntries([...document.querySelectorAll('section')]"
        ".map(s => [s.id, s.querySelectorAll('figure svg').length]))"
    )
    assert page.run(count) == {
        "scores": 0,
        "gains": 0,
        "differences": 0,
        "alignment-and-uniformity": 1,
        "training": 2,
        "features": 0,
        "parameters": 0,
    }
    heights = "[...document.querySelectorAll('figure svg')].map(s => s.clientHeight)"
    assert min(page.run(heights)) > 100


def test_figures_and_text_are_light_in_the_dark(page):
    ink = "getComputedStyle(document.querySelector('figure svg g[id^=text] g')).fill"
    paper = "getComputedStyle(document.querySelector('figure svg #patch_1 path')).fill"
    light = page.run(ink), page.run(paper)
    page.prefer("dark")
    assert (page.run(ink), page.run(paper)) == ("rgb(230, 234, 238)", "rgb(20, 24, 28)")
    assert light == ("rgb(31, 41, 51)", "rgb(255, 255, 255)")
    drawn = "[...document.querySelectorAll('figure svg *')].map(e => getComputedStyle(e))"
    colours = set(page.run(f"{drawn}.flatMap(style => [style.fill, style.stroke])"))
    light_only = {INK, FAINT, PLAIN, "#ffffff"}
    assert not colours & {
        f"rgb{tuple(int(c[i : i + 2], 16) for i in (1, 3, 5))}" for c in light_only
    }


def test_a_narrow_window_scrolls_tables_and_figures_and_not_the_page(page):
    page.resize(390, 1000)
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 390
    scrolled = "[...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth"
    scrolled += " && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))"
    assert {"DIV", "FIGURE"} == set(page.run(f"{scrolled}.map(e => e.tagName)"))
    assert page.run(f"{scrolled}.every(e => e.tabIndex === 0)")
    page.run("document.querySelectorAll('details').forEach(e => (e.open = true))")
    page.settle()
    assert page.run(f"{scrolled}.some(e => e.closest('details'))")
    assert page.run(f"{scrolled}.every(e => e.tabIndex === 0)")
    page.resize(1300, 1000)
    page.settle()
    still = page.run(f"{scrolled}.length")
    assert page.run("document.querySelectorAll('main [tabindex]').length") == still < 3


def test_print_leaves_out_what_only_a_screen_needs(page):
    page.prefer("dark")
    page.call("Emulation.setEmulatedMedia", media="print", features=[])
    hidden = "['nav', '.filter', '.open'].map(e => document.querySelector(e).checkVisibility())"
    assert page.run(hidden) == [False] * 3
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.call("Emulation.setEmulatedMedia", media="")
