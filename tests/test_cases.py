"""Cases that once went wrong, each a script of commands: what it must print now.

They lie beside the checkout, and the tests skip without them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "shared/cases"
SAID = {
    "silence/01-weights-file-replaced": [
        r"other weights(?s:.*)image-features@own-resnet18: .*6 rows · 6 computed"
    ],
    "silence/02-student-replaced": [r"another model(?s:.*)best dev score 75\.37", r"nothing to do"],
    "silence/03-grounder-reads-a-file": [r"a second word(?s:.*)12 pairs .* · 6 computed"],
    "silence/04-code-of-an-encoder-edited": [
        r"6 of 6 rows encoded again differ: all are computed again",
        r"0 added, 0 removed, 0 changed, 6 unchanged",
    ],
    "silence/05-span-outside-its-caption": [
        r"error: addon\.shifted\.Shifted: the span of .* fix the package 'addon'"
    ],
    "silence/06-setting-of-a-task-changed": [r"rounds: 7(?s:.*)scores: \{'rounds': 7\.0\}"],
    "silence/07-pickled-set-of-another-day": [r"a run has published since; open it again"],
    "silence/08-gc-on-a-full-disk": [  # publishing has freed the shard before
        r"disk/s: 1 file, 0 rows, 25\.2 kB\n25\.2 kB freed\n"
        r"error: disk/s: .*; its shards still hold 100 dropped rows\. Make room .*\nrc=1"
    ],
    "silence/09-gc-stops-at-the-first-bad-disk": [
        r"sets/a: 1 file, 0 rows, 30\.0 kB\nsets/z: 2 files, 0 rows, 6\.6 kB\n36\.6 kB freed\n"
        r"error: sets/a: .*; its shards still hold 300 dropped rows\. Make room .*\nrc=1"
    ],
    "silence/10-set-in-a-folder-NAME.run": [r"a folder NAME\.run is for the files of runs"],
    "silence/11-float16-underflow": [
        r"photographs/1\.png: is too small for float16 .*: store with --dtype float32"
    ],
    "silence/12-a-count-that-no-memory-holds": [
        r"has 50 rows, but set\.json says 140,737,488,355,328"
    ],
    "silence/13-many-codes-of-failures": [r"failed: 244"],
    "silence/14-folder-whose-name-is-not-utf-8": [r"/features: sound\nrc=0"],
    "silence/15-a-failure-is-lost": [
        r"run 1: .*rows 16, failed 1 .*index: 1\nrun 2: computed 0, rows 16, failed 1 .*index: 1"
    ],
    "silence/16-run-folder-on-another-disk": [r"error: .* lie on two file systems.*put both on"],
    "silence/17-prompt-and-normalisation-dropped": [
        r"best dev score 74\.65",
        r'"default_prompt_name": "query"',
        r"runs/normalisation/model squared lengths \[(0\.9999\d*|1\.\d*|\s)+\] dot",
    ],
    "silence/18-adapter-beside-the-base-model": [
        r"(?s:evaluate similarity .*)error: both: holds an adapter \(adapter_config\.json\)",
        r"(?s:train simcse .*)error: both: holds an adapter.*merge_and_unload",
    ],
    "silence/19-scores-replaced": [
        r"tasks \['similarity', 'geometry'\] of run (\w+)(?s:.*)has the scores of another run",
        r"(?s:NAME=runs/b/seed-0.*)tasks \['similarity', 'geometry'\] of run",
    ],
    "silence/20-tokens-of-another-tokenizer": [
        r"error: tokens-of-a: made with another tokenizer than that of b; .*--student b`"
    ],
    "silence/21-prompt-fills-the-length": [
        r"the prompt has 35 tokens.*only 32 are read.*raise max_length",
        r"the prompt has 68 tokens.*shorten the prompt",
    ],
    "silence/22-disk-full-at-a-checkpoint": [
        r"error: runs/full: no room to write the checkpoint \(.*\nrc=1"
    ],
    "silence/23-orientation-changed-in-place": [
        r"what the message says(?s:.*)features: 6 rows · 1 computed(?s:.*)what helps"
    ],
    "silence/24-captions-without-spaces": [
        r"objects-boxes: .* 4 pairs(?s:.*)objects-spans: .* 4 pairs",
        r"phrases \['狗', '草地'\] dropped \[\]",
    ],
    "silence/25-address-space-limit": [
        r"not enough memory .*of virtual memory.*raise the limit(?s:.*)ask the batch system"
    ],
    "silence/26-same-name-in-a-missing-folder": [
        r"missing a/1\.png has no row: MissingKeys",
        r"both a/1\.png has \[4\. 5\. 6\. 7\.\]",
        r"splits: .* 2 images without split(?s:.*)\| a/1\.png \| \n",
        r"boxes\.jsonl: no box is of a caption to ground",
    ],
    "silence/27-captions-of-folders-that-are-not-here": [
        r"i1 video1 has the rows \[5\.0, 6\.0\]",
        r"i2 video1 has the rows \[5\.0, 6\.0\]",
        r"cat/0002\.png \|  \| a cat 2\n",
        r"o5: .* 2 split entries without image, 2 captions without image",
        r"error: video2\.txt: none of the 2 entries of lists of splits names an image",
    ],
    "silence/28-same-name-in-train-and-val": [
        r"val/frame_000000\.png dev \['A box 0 of val\.'\]",
        r"data: coco: .* 5 captions, 3 images train, 2 images dev",
    ],
}
"""Case → patterns of what its script prints."""


EARLIER = {
    "clients/01-pooler-newly-initialised": [r"pooler_output of two loads equal: True"],
    "clients/03-key-hex-and-bytes": [r"after bytes\.hex\(\): 60"],
    "data/01-webdataset-dotted-keys": [
        r"WebDataset ends a key at the first dot: rename the members"
    ],
    "data/02-shared-memory": [r"/dev/shm has .* free .*\(--workers 0\)\nrc=1"],
    "data/03-orientation-not-in-exif": [
        r"late-exif\.png +manifest 80x60 +encoder 80x60 +page 80x60",
        r"xmp\.webp +manifest 60x80 +encoder 60x80 +page 60x80",
    ],
    "data/04-pandas-tsv-quotes": [r'rc=0\nA sign reads "STOP" \.\n"Hello" says the girl\n'],
    "data/05-names-in-params": [r"encoders\.image: found the name 'r18@336', expected letters"],
    "data/06-dvc-symlink-cache": [r"features/r18: sound", r"r18\.tar: .*kB\nrc=0"],
    "data/08-same-image-in-train-and-test": [
        r"images in two splits: 1 \(copy_of_a\.jpg\)",
        r"images in two splits: 1 \(test\.tar/0\.jpg\)",
    ],
    "data/09-text-longer-than-the-model": [r"2 of 3 texts are longer than 77 tokens and cut"],
    "data/10-float16-overflow": [r"store with --dtype float32", r"g: 3 rows · 3 computed"],
    "data/11-encoding-remedy": [r"iconv -f utf-16 -t utf-8", r"iconv -f windows-1252 -t utf-8"],
    "data/15-no-git": [r"is not a git repository, which DVC needs: run `git init`.*\nrc=1"],
    "data/16-tilde": [r"~ is not expanded here(?s:.*)~ is not expanded here"],
    "data/17-folder-called-parquet": [r"/4: huggingface: .* 3 captions, 3 images train"],
    "producers/01-binary-told-to-be-latin1": [r"a zip archive; .*unpack it: `unzip "],
    "producers/02-import-calls-every-file-a-tar": [
        r"clip\.pt: a PyTorch pickle; expected",
        r"o-clip\.h5: 4 rows of 4",
        r"o-clip\.PARQUET: 4 rows of 4",
    ],
    "producers/03-avif-accepted-then-refused": [r"features: 2 rows · 2 computed"],
    "producers/04-sentences-from-csv-and-jsonl": [
        r"nli_for_simcse\.csv: wrong columns",
        r"column 'text' read as sentence",
    ],
    "producers/05-advice-to-use-an-option-that-is-not-there": [r"features: 2 rows · 2 computed"],
    "producers/06-boxes-of-others-have-no-way-in": [
        r"o-plain\.parquet: 1 image, 1 caption, 1 pair"
    ],
    "producers/07-columns-of-other-names": [r"column 'filepath' read as image"],
    "producers/08-json-arrays-and-lists-of-captions": [
        r"captions_val2017\.json: COCO's captions; use the kind `coco`",
        r"use the kind `coco` with this file as --karpathy",
    ],
    "producers/09-a-text-file-beside-every-image": [r"leave out --captions and give --beside txt"],
    "producers/10-a-column-split-that-is-not-looked-at": [
        r"column 'split' \(test, train, val\) is not used; --split-column",
        r"o2: .* 2 images train, 1 images dev, 1 images test",
    ],
    "producers/11-webdataset-names-of-parts": [r"choose them with --image-part and --caption-part"],
    "producers/13-paths-in-the-captions-file": [
        r"the beginning 'photos/' of its image names dropped",
        r"f-absolute: 2 rows of 2",
    ],
    "producers/16-lists-inside-a-csv": [r"data: .* 20 captions", r"A box 3, side 4\."],
    "producers/18-archives-of-photographs-and-of-annotations": [
        r"photos\.zip: a zip archive; expected a folder of images; unpack it"
    ],
    "producers/19-several-configurations-and-no-choice": [r"choose one with --config(?s:.*)rc=0"],
    "producers/22-urls-in-place-of-images": [r"img2dataset --output_format webdataset"],
    "producers2/01-too-few-columns": [r"line 6: found 2 columns, expected 3"],
    "producers2/02-first-line-sep": [r"o3: .* 3 captions", r"0\.jpg \| train \| \['A box 0'\]"],
    "producers2/03-json-of-pandas-and-datasets": [r"o-jsonl: .* 3 captions"],
    "producers2/04-imagefolder-with-splits": [r"validation/0000\.jpg \| "],
    "producers2/05-files-that-are-no-tables": [r"an LMDB data base; .*read it by the package lmdb"],
    "producers2/06-paths-without-bytes": [r"0 \| train \| \['a'\]\n +1 \| dev \| \['b'\]"],
    "producers2/08-split-as-class-label-in-parquet": [r"1 \| dev \| \['B'\]"],
    "producers2/09-weights-under-another-suffix": [
        r"scripted\.pt: a TorchScript archive",
        r"features-compiled\.pt: 2 rows · 2 computed",
    ],
    "producers2/10-degenerate-polygon": [r"objects-good-and-two-points: .* 2 pairs"],
    "producers2/11-captions-of-several-lines": [
        r"00000\.tar/1\.jpg \|  \| \['First paragraph of 1\.', 'Second paragraph of 1\.'\]"
    ],
    "producers2/12-dvc-add-of-raw-data": [r"rc=0"],
    "producers2/13-split-as-class-label-in-arrow": [r"5 \| test \| \['f'\]"],
    "producers2/14-copy-without-split": [r"images without caption: 1 \(copy\.jpg\)"],
    "producers2/15-json-by-name": [r"index\.json: has no column '1\.jpg'"],
}
"""Of cases whose scripts say what was wrong: what shows that it is right now."""


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not here")
@pytest.mark.parametrize("case", [*SAID, *EARLIER])
def test_a_case_says_what_it_must(case, tmp_path):
    script = CASES / case / "run.sh"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    here = {"BIN": str(Path(sys.executable).parent), "CLONE": str(Path(__file__).parents[1])}
    environment = {**os.environ, **here, "PATH": path, "OUT": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # as on a terminal, where errors stand in their places
        text=True,
        errors="replace",
    )
    for pattern in (SAID | EARLIER)[case]:
        assert re.search(pattern, done.stdout), f"{pattern}\n{done.stdout}"
    assert "is a bug in Sightline" not in done.stdout
