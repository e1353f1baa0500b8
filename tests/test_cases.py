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


@pytest.mark.slow
@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not here")
@pytest.mark.parametrize("case", SAID)
def test_a_case_says_what_it_must(case, tmp_path):
    script = CASES / case / "run.sh"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OUT": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, errors="replace"
    )
    said = done.stdout + done.stderr
    for pattern in SAID[case]:
        assert re.search(pattern, said), f"{pattern}\n{said}"
    assert "is a bug in Sightline" not in said
