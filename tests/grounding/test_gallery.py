"""The page: its content, nothing else, and escaped text."""

from __future__ import annotations

import base64
import io
import json
import re

import numpy as np
import pytest
from command_line import sightline
from gallery_data import Builder, small_grounding
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from pipeline.grounding.gallery.cards import COLOURS, Phrase, pieces, read_contents
from pipeline.grounding.gallery.outline import outline, shrink
from pipeline.grounding.gallery.page import write_gallery
from pipeline.grounding.pictures import cut_out, photograph
from sightline.errors import SightlineError


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    files = small_grounding(folder)
    contents = read_contents(files.phrases, files.captions, files.images, limit=10)
    write_gallery(contents, files.root, folder / "page.html", "A <title> & more")
    return (folder / "page.html").read_text()


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
    assert outline(~mask).count("M") == 2  # a hole
    assert outline(np.zeros((3, 3), dtype=bool)) == ""


def test_a_thin_mask_survives_shrinking():
    mask = np.zeros((100, 100), dtype=bool)
    mask[50, :] = True
    assert shrink(mask, 10, 10).any()
    mask[:, :50] = True
    assert shrink(mask, 10, 10).sum() == 50


def phrase(number: int, start: int, end: int) -> Phrase:
    return Phrase(number, {"char_start": start, "char_end": end})


def test_pieces_of_nested_crossing_and_repeated_phrases():
    text = "a man in a red hat sits"
    nested = pieces(text, [phrase(1, 0, 18), phrase(2, 9, 18), phrase(3, 14, 23), phrase(4, 9, 18)])
    assert "".join(piece.text for piece in nested) == text
    owners = [(piece.text, piece.phrase and piece.phrase.number) for piece in nested]
    assert owners == [("a man in ", 1), ("a red", 2), (" hat", 2), (" sits", 3)]
    assert [[each.number for each in piece.ending] for piece in nested] == [[], [], [1, 2, 4], [3]]
    beyond = pieces("short", [phrase(1, 2, 900)])
    assert [piece.text for piece in beyond] == ["sh", "ort"]
    assert pieces("", []) == []


def test_text_is_escaped(page):
    assert "<title>A &lt;title&gt; &amp; more</title>" in page
    assert page.count("<script") == 4  # one a card, and the page's own
    assert "<b>" not in re.sub(r"<b>\d+</b>", "", page)
    assert "onerror='" not in page
    assert "&lt;i&gt;a cat&lt;/i&gt;" in page
    assert "box of 3 pixels &lt; &#34;4&#34;" in page


def test_nothing_points_outside(page):
    for target in re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", page):
        assert target.startswith(("#", "data:")) or target == "x", target
    assert "default-src 'none'" in page
    named = page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in named  # the name of SVG's elements is no address


def test_drops_and_reasons(page):
    assert "scene (1)" in page
    assert "low score (1)" in page
    assert "dropped phrases (4)" in page
    assert "0.100 &lt; 0.3" in page


def test_problems_are_shown_where_they_occur(page):
    assert "mask of 5 × 5 pixels, image of 120 × 200" in page
    assert "the caption reads &#39;capt&#39; there" in page
    assert "silent.jpg" not in page  # neither a phrase nor a drop


def test_masks_are_drawn_once_and_larger_objects_below_smaller_ones(tmp_path):
    build = Builder(tmp_path)
    texts = ["a hat on a dog", "a dog"]
    key = build.image("one.png", 40, 40, texts)
    build.phrase(key, texts[0], "a hat", (5, 5, 10, 10), 1.0)
    build.phrase(key, texts[0], "a dog", (0, 0, 30, 30), 1.0)
    build.phrase(key, texts[1], "a dog", (0, 0, 30, 30), 1.0)
    files = build.write()
    contents = read_contents(files.phrases, files.captions, files.images, limit=1)
    write_gallery(contents, files.root, tmp_path / "page.html", "t")
    (drawing,) = re.findall(r'json">(.*?)</script>', (tmp_path / "page.html").read_text())
    drawn = json.loads(drawing)
    assert len(drawn["shapes"]) == len(drawn["cutouts"]) == 2
    numbers = [[(each["number"], each["shape"]) for each in some] for some in drawn["captions"]]
    assert numbers == [[(2, 1), (1, 0)], [(1, 1)]]


def test_an_image_that_cannot_be_read_keeps_its_card(tmp_path):
    files = small_grounding(tmp_path)
    (files.root / "plain.jpg").write_bytes(b"other bytes")
    (files.root / "wrong.jpg").unlink()
    contents = read_contents(files.phrases, files.captions, files.images, limit=10)
    write_gallery(contents, files.root, tmp_path / "page.html", "t")
    text = (tmp_path / "page.html").read_text()
    assert "plain.jpg: the 11 bytes there now differ from those" in text
    assert "wrong.jpg: no such file" in text
    assert text.count('"photo":null') == 2
    assert len(contents.cards) == 3


def test_a_limit_spreads_over_the_manifest(tmp_path):
    build = Builder(tmp_path)
    for i in range(20):
        key = build.image(f"{i:02}.png", 8, 8, [f"thing {i}"])
        build.phrase(key, f"thing {i}", "thing", (1, 1, 7, 7), 1.0)
    files = build.write()
    shown = read_contents(files.phrases, files.captions, files.images, limit=4)
    assert [card.row["path"] for card in shown.cards] == ["00.png", "05.png", "10.png", "15.png"]
    assert shown.grounded == 20


def test_files_of_equal_content_are_one_image(tmp_path):
    build = Builder(tmp_path)
    key = build.image("one.png", 8, 8, ["a thing"])
    (build.root / "two.png").write_bytes((build.root / "one.png").read_bytes())
    build.images.append({**build.images[0], "image_id": "two.png", "path": "two.png"})
    row = {"caption_id": "two.png#0", "image_id": "two.png", "text": "another thing", "split": ""}
    build.captions.append(row)
    for text in ("a thing", "another thing"):
        build.phrase(key, text, "thing", (1, 1, 7, 7), 1.0)
    files = build.write()
    shown = read_contents(files.phrases, files.captions, files.images, limit=4)
    assert [[caption.text for caption in card.captions] for card in shown.cards] == [
        ["a thing", "another thing"]
    ]


def test_the_same_input_gives_the_same_page(tmp_path):
    files = small_grounding(tmp_path)
    for name in ("one.html", "two.html"):
        contents = read_contents(files.phrases, files.captions, files.images, limit=10)
        write_gallery(contents, files.root, tmp_path / name, "t")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


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


def test_photographs_are_bounded():
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    assert len(photograph(noise, 384)) < 200_000  # the worst there is


def test_a_cutout_of_an_icon_keeps_every_colour():
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    mask = np.zeros((48, 64), dtype=bool)
    mask[10:40, 5:60] = True
    data = base64.b64decode(cut_out(pixels, mask, 112).partition(",")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert (np.array(image.convert("RGB")) == pixels[10:40, 5:60]).all()


def test_files_that_do_not_belong_together(tmp_path):
    one, other = small_grounding(tmp_path / "one"), Builder(tmp_path / "other")
    key = other.image("x.png", 9, 9, ["x"])
    other.phrase(key, "x", "x", (1, 1, 8, 8), 1.0)
    stranger = other.write()
    with pytest.raises(SightlineError, match="3 of its images are not in"):
        read_contents(one.phrases, one.captions, stranger.images, limit=5)
    with pytest.raises(SightlineError, match=r"'x\.png' has phrases of 1 captions"):
        read_contents(stranger.phrases, one.captions, stranger.images, limit=5)


def test_the_command(tmp_path, capsys):
    files = small_grounding(tmp_path)
    out = tmp_path / "look.html"
    assert sightline("look", "grounding", *files.options, "--out", out, "--limit", 2) == 0
    assert "2 of 3 images" in capsys.readouterr().out
    missing = [tmp_path / "nowhere.parquet", *files.options[1:], "--out", out]
    assert sightline("look", "grounding", *missing) == 1
    assert "nowhere.parquet: no such manifest" in capsys.readouterr().err
    files.root.rename(tmp_path / "elsewhere")
    assert sightline("look", "grounding", *files.options, "--out", out) == 1
    assert "its images are not here" in capsys.readouterr().err


def test_a_manifest_without_phrases(tmp_path, capsys):
    build = Builder(tmp_path)
    build.image("x.png", 9, 9, ["x"])
    files = build.write()
    out = tmp_path / "look.html"
    assert sightline("look", "grounding", *files.options, "--out", out) == 1
    assert "contains no phrases" in capsys.readouterr().err
    assert not out.exists()
