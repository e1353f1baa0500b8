"""A grounding as a page, with nothing but its content and all text escaped, and in numbers."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from command_line import unboxed
from gallery_data import HOSTILE, Grounding, small_grounding
from ground_data import write_table
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from pipeline.extract.objects import SPEC
from pipeline.grounding.gallery.cards import COLOURS, Phrase, pieces, read_contents
from pipeline.grounding.gallery.outline import outline, shrink
from pipeline.grounding.page_pictures import cut_out, photograph
from pipeline.grounding.stats import statistics
from sightline.cache import CAPTIONS, PHRASES, CacheError
from sightline.cache.keys import as_keys
from sightline.cache.table_sets import write_rows
from sightline.cache.tables import CUTOUTS
from sightline.errors import SightlineError


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_grounding(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")
def page(small):
    return small.page().read_text()


def filled(path: str, height: int, width: int) -> np.ndarray:
    """The even-odd fill of a path of h and v moves: a pixel is in if edges left of it are odd."""
    crossings = np.zeros((height, width + 1), dtype=int)
    for loop in re.findall(r"M(\d+) (\d+)([^z]*)z", path):
        x, y = int(loop[0]), int(loop[1])
        for kind, length in re.findall(r"([hv])(-?\d+)", loop[2]):
            if kind == "h":
                x += int(length)
            else:
                low, high = sorted((y, y + int(length)))
                crossings[low:high, x] += 1
                y += int(length)
        assert (x, y) == (int(loop[0]), int(loop[1])), "a loop that does not close"
    return np.cumsum(crossings, axis=1)[:, :-1] % 2 == 1


@given(arrays.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_an_outline_encloses_exactly_the_mask(mask):
    assert (filled(outline(mask), *mask.shape) == mask).all()


def test_an_outline_is_short_where_the_mask_is_simple():
    mask = np.zeros((40, 60), dtype=bool)
    mask[10:30, 5:50] = True
    assert outline(mask) == "M5 10h45v20h-45v-20z"


def test_a_thin_mask_survives_shrinking():
    mask = np.zeros((100, 100), dtype=bool)
    mask[50, :] = True
    assert shrink(mask, 10, 10).any()
    mask[:, :50] = True
    assert shrink(mask, 10, 10).sum() == 50


def test_pieces_of_nested_crossing_and_repeated_phrases():
    text, spans = "a man in a red hat sits", [(0, 18), (9, 18), (14, 23), (9, 18)]
    phrases = [
        Phrase(number, {"char_start": start, "char_end": end})
        for number, (start, end) in enumerate(spans, 1)
    ]
    nested = pieces(text, phrases)
    owners = [(piece.text, piece.phrase and piece.phrase.number) for piece in nested]
    assert owners == [("a man in ", 1), ("a red", 2), (" hat", 2), (" sits", 3)]
    assert [[each.number for each in piece.ending] for piece in nested] == [[], [], [1, 2, 4], [3]]
    beyond = pieces("short", [Phrase(1, {"char_start": 2, "char_end": 900})])
    assert [piece.text for piece in beyond] == ["sh", "ort"]
    assert pieces("", []) == []


def test_text_is_escaped_and_nothing_points_outside(page):
    assert page.count("<script") == 4  # one a card, and the page's own
    assert "<b>" not in re.sub(r"<b>\d+</b>", "", page)
    assert "onerror='" not in page
    assert "&lt;i&gt;a cat&lt;/i&gt;" in page
    assert "box of 3 pixels &lt; &#34;4&#34;" in page
    for target in re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", page):
        assert target.startswith(("#", "data:")) or target == "x", target
    assert "default-src 'none'" in page
    named = page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in named  # the name of SVG's elements is no address


def test_drops_and_problems_are_shown_where_they_occur(page):
    assert "ambiguous (1)" in page
    assert "low score (1)" in page
    assert "dropped phrases (4)" in page
    assert "0.100 &lt; 0.3" in page
    assert "mask of 5 × 5 pixels, image of 120 × 200" in page
    assert "the caption reads &#39;capt&#39; there" in page
    assert "silent.jpg" not in page  # neither a phrase nor a drop


def test_masks_are_drawn_once_and_larger_objects_below_smaller_ones(tmp_path):
    made, texts = Grounding(tmp_path), ("a hat on a dog", "a dog")
    made.image("one.png", 40, 40, *texts)
    made.phrase("one.png", texts[0], "a hat", (5, 5, 10, 10))
    made.phrase("one.png", texts[0], "a dog", (0, 0, 30, 30))
    made.phrase("one.png", texts[1], "a dog", (0, 0, 30, 30))
    made.write()
    (drawing,) = re.findall(r'json">(.*?)</script>', made.page().read_text())
    drawn = json.loads(drawing)
    assert len(drawn["shapes"]) == len(drawn["cutouts"]) == 2
    numbers = [[(each["number"], each["shape"]) for each in some] for some in drawn["captions"]]
    assert numbers == [[(2, 1), (1, 0)], [(1, 1)]]


def test_an_image_that_cannot_be_read_keeps_its_card(tmp_path):
    made = small_grounding(tmp_path)
    (made.folder / "images/plain.jpg").write_bytes(b"other bytes")
    (made.folder / "images/wrong.jpg").unlink()
    text = made.page().read_text()
    assert "plain.jpg: the 11 bytes there now differ from those" in text
    assert "wrong.jpg: no such file" in text
    assert text.count('"photo":null') == 2
    assert text.count('class="card"') == 3
    assert text.count("<img data-cutout") == 2  # of the third image


def test_a_limit_spreads_over_the_manifest_and_files_of_equal_content_are_one_image(tmp_path):
    made = Grounding(tmp_path)
    for i in range(20):
        made.image(f"{i:02}.png", 8, 8, "a thing")
        made.phrase(f"{i:02}.png", "a thing", "thing")
    shutil.copy(made.folder / "images/00.png", made.folder / "images/copy.png")
    made.captions["copy.png"] = ["another thing"]
    made.phrase("00.png", "another thing", "thing")
    made.write()
    shown = made.contents(limit=4)
    assert [card.row["path"] for card in shown.cards] == ["00.png", "05.png", "10.png", "15.png"]
    assert shown.grounded == 20
    captions = [caption.text for caption in shown.cards[0].captions]
    assert captions == ["a thing", "another thing"]


def test_the_style_sheet_has_every_colour_and_they_can_be_seen(page):
    colours = re.findall(r"\.c(\d) \{ --c: light-dark\((#\w+), (#\w+)\)", page)
    assert [int(number) for number, _, _ in colours] == list(range(COLOURS))
    for _, on_light, on_dark in colours:
        assert contrast(on_light, "#ffffff") >= 4.5
        assert contrast(on_dark, "#14181c") >= 4.5


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2, from relative luminances."""

    def luminance(colour: str) -> float:
        values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_photographs_are_bounded_and_a_cutout_of_an_icon_keeps_every_colour():
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    assert len(photograph(noise, 384)) < 200_000  # the worst there is
    pixels, mask = noise[:48, :64], np.zeros((48, 64), dtype=bool)
    mask[10:40, 5:60] = True
    data = base64.b64decode(cut_out(pixels, mask, 112).partition(",")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert (np.array(image.convert("RGB")) == pixels[10:40, 5:60]).all()


def test_files_that_do_not_belong_together(small, tmp_path):
    stranger = Grounding(tmp_path / "other")
    stranger.image("x.png", 9, 9, "x")
    stranger.phrase("x.png", "x", "x")
    stranger.write()
    captions, images = small.folder / "captions.parquet", stranger.folder / "images.parquet"
    with pytest.raises(SightlineError, match="3 of its images are not in"):
        read_contents(small.path, captions, images, limit=5)
    with pytest.raises(SightlineError, match=r"'x\.png' has phrases of 1 captions"):
        read_contents(stranger.path, captions, images, limit=5)
    stranger.path = write_table(tmp_path / "phrases.parquet", [], PHRASES)
    with pytest.raises(SightlineError, match="contains no phrases"):
        stranger.contents()


def test_the_command_limits_the_images_and_needs_them(tmp_path, said):
    made = small_grounding(tmp_path)
    options = "--data", tmp_path, "--out", tmp_path / "look.html"
    assert "2 of 3 images" in said("look", "grounding", made.path, *options, "--limit", 2)[1]
    code, _, error = said("look", "grounding", tmp_path / "nowhere.parquet", *options)
    told = "nowhere.parquet: no such grounding; `sightline ground` writes it"
    assert (code, told in error) == (1, True)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    code, _, error = said("look", "grounding", made.path, *options)
    assert (code, "its images are not here" in error) == (1, True)


# -- statistics, counted by hand -----------------------------------------------------------------


def test_counts(small):
    stats = statistics(small.path)
    assert (stats["images"], stats["pairs"], stats["failed"]) == (4, 8, {})
    assert stats["pairs_per_image"] == 2.0
    assert list(stats["images_by_pairs"].items()) == [(0, 1), (2, 2), (4, 1)]
    assert (stats["contrasted"], stats["objects"]) == (3, 8)
    assert stats["dropped"] == {"ambiguous": 1, "low_score": 1, "no_box": 1, "too_small": 1}
    assert stats["span_coverage"] is None


def test_coverage_counts_a_character_once_and_needs_every_caption(small, tmp_path):
    stats = statistics(small.path, small.folder / "captions.parquet")
    plain = (18 + 11) / 36  # "a red hat" lies inside "a man in a red hat"
    hostile = (34 + 3) / len(HOSTILE)  # the family is three code points
    wrong = 11 / 28  # the second span lies inside the first
    assert stats["span_coverage"] == pytest.approx((plain + 11 / 22 + hostile + wrong) / 4)
    other = write_table(tmp_path / "other.parquet", [], CAPTIONS)
    with pytest.raises(CacheError, match="lacks 4 of the captions that were grounded"):
        statistics(small.path, other)


def test_cache_info_shows_them_and_takes_a_data_set_for_groundings_only(small, tmp_path, said):
    data = "--data", small.folder
    shown = said("cache", "info", small.path, *data)[1]
    assert "2.00 per image (MCSEO on Flickr30k: 4.2)" in shown
    assert "4: ambiguous 1, low score 1, no box 1, too small 1" in shown
    assert "of a caption's characters" in shown
    found = json.loads(said("cache", "info", small.path, *data, "--json")[1])["statistics"]
    counted = statistics(small.path, small.folder / "captions.parquet")
    assert found == json.loads(json.dumps(counted))
    write_rows(tmp_path / "cutouts", SPEC, as_keys([]), CUTOUTS.empty_table())
    code, _, error = said("cache", "info", tmp_path / "cutouts", *data)
    assert code == 2
    assert "is of kind cutouts, not a grounding" in unboxed(error)
