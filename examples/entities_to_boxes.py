"""Flickr30k Entities as a table of boxes, which the grounder `annotations` reads.

    python examples/entities_to_boxes.py ENTITIES DATA OUT

such as: Flickr30kEntities data/datasets/flickr30k boxes.jsonl. ENTITIES has Sentences/IMAGE.txt
and Annotations/IMAGE.xml, DATA is the prepared data set, whose captions may be raw or tokenised.

A sentence marks its phrases, [/EN#283585/people A man]; an XML gives the boxes of these ids, which
count pixels from 1 and include the last (Plummer et al., "Flickr30k Entities", ICCV 2015).
"""

import argparse
import json
import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import sightline as sl

MARK = re.compile(r"\[/EN#(\d+)((?:/[^/\s\]]+)+)\s")


def closing_bracket(line, start):
    depth = 1
    for at in range(start, len(line)):
        depth += {"[": 1, "]": -1}.get(line[at], 0)
        if not depth:
            return at
    raise ValueError(f"no closing bracket after {line[start : start + 60]!r}")


def parse(line):
    """A sentence without its marks, and the id, types and span of each."""
    text, marks, at = "", [], 0
    while mark := MARK.search(line, at):
        text += line[at : mark.start()]
        at = closing_bracket(line, mark.end()) + 1
        start = len(text)
        text += line[mark.end() : at - 1]
        marks.append((mark[1], mark[2].split("/"), range(start, len(text))))
    return text + line[at:], marks


def sentences_of(data):
    return [parse(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]


def number(element, name):
    text = element.findtext(name) or ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name}: found {text[:20]!r}, expected a number")
    return value


def entities_of(data, size):
    """Ids → their boxes, x0, y0, x1, y1 in pixels from 0, the end exclusive; ids of scenes."""
    root = ElementTree.fromstring(data)
    drawn = number(root, "size/width"), number(root, "size/height")
    if drawn != size:
        of = [f"{width:g} × {height:g}" for width, height in (drawn, size)]
        raise ValueError(f"boxes for {of[0]} pixels, the image has {of[1]}")
    boxes, scenes = {}, set()
    for thing in root.iter("object"):
        names = [name.text.strip() for name in thing.iter("name") if (name.text or "").strip()]
        if not names:
            raise ValueError("an object has no name")
        for name in names:
            found = boxes.setdefault(name, [])
            if (thing.findtext("scene") or "").strip() == "1":
                scenes.add(name)
            if (box := thing.find("bndbox")) is not None:
                x0, y0, x1, y1 = (number(box, edge) for edge in ("xmin", "ymin", "xmax", "ymax"))
                found.append([x0 - 1, y0 - 1, x1, y1])
    return boxes, scenes


def characters(text, counts):
    """Folded characters that count, each with its position."""
    return [(folded, at) for at, c in enumerate(text) if counts(c) for folded in c.casefold()]


def align(sentence, caption):
    """Span in ``caption`` of each mark, None for one without letters; None if they do not match.

    They match if their characters do, but for white space and case, or else letters and digits.
    """
    text, marks = sentence
    for counts in (lambda c: not c.isspace(), str.isalnum):
        ours, theirs = characters(caption, counts), characters(text, counts)
        if [c for c, _ in ours] == [c for c, _ in theirs]:
            spans = []
            for *_, span in marks:
                pairs = zip(ours, theirs, strict=True)
                inside = [at for (_, at), (_, marked) in pairs if marked in span]
                spans.append((inside[0], inside[-1] + 1) if inside else None)
            return spans
    return None


def rows_of(image, texts, sentences, boxes, scenes, counts):
    """Rows of an image; ``counts`` has what becomes none."""
    marked = {name for _, marks in sentences for name, *_ in marks}
    counts["ids that no sentence names"] += len(boxes.keys() - marked)
    for text in texts:
        aligned = ((sentence, align(sentence, text)) for sentence in sentences)
        (_, marks), spans = next((each for each in aligned if each[1] is not None), (("", ()), ()))
        counts["captions without a marked sentence"] += not marks
        for (name, types, _), span in zip(marks, spans, strict=True):
            if span is None or not boxes.get(name):
                why = "of a scene" if name in scenes else "without a box"
                why = "that name nothing visible" if "notvisual" in types else why
                counts[f"phrases {'without a letter' if span is None else why}"] += 1
                continue
            counts["phrases with boxes"] += 1
            row = {"image": image, "caption": text, "phrase": text[slice(*span)]}
            row |= {"char_start": span[0], "char_end": span[1]}
            yield from ({**row, "box": box} for box in boxes[name])


def read(path, parser, *words):
    try:
        return parser(path.read_bytes(), *words)
    except (SyntaxError, LookupError, ValueError) as error:  # also a strange encoding
        sys.exit(f"error: {path}: damaged, or not as released: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("entities", "data", "out"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    folder, place, out = vars(parser.parse_args()).values()
    if out.suffix != ".jsonl":
        parser.error(f"OUT: found {out}, expected a name that ends in .jsonl")
    data, captions, counts, rows = sl.PreparedDataset.open(place), {}, Counter(), []
    for row in data.captions.to_pylist():
        captions.setdefault(row["image_id"], {})[row["text"]] = None
    for image in data.images.to_pylist():
        name, size = image["image_id"], (image["width"], image["height"])
        files = (f"Sentences/{Path(name).stem}.txt", f"Annotations/{Path(name).stem}.xml")
        sentences, annotation = (folder / file for file in files)
        if not (sentences.is_file() and annotation.is_file()):
            counts["images without annotations"] += 1
        elif any(size):  # else no image can be read there
            sentences = read(sentences, sentences_of)
            found = read(annotation, entities_of, size)
            rows += rows_of(name, captions.get(name, ()), sentences, *found, counts)
    if not rows:
        sys.exit(
            f"error: {folder}: no boxes of {place}; expected Sentences/*.txt, Annotations/*.xml"
        )
    out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print(f"{out}: {len(rows):,} boxes")
    for what, count in sorted((+counts).items()):
        print(f"{what}: {count:,}")


if __name__ == "__main__":
    try:
        main()
    except (sl.SightlineError, OSError) as error:
        sys.exit(f"error: {error}")
