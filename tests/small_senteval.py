"""A small SentEval folder, for tests."""

from __future__ import annotations

from pathlib import Path

from train.evaluate.sts import SUBSETS


def write_senteval(root: Path) -> Path:
    """Write the layout of SentEval's `downstream` below ``root``, which is returned.

    Every subset has three scored pairs, and one that is not scored.
    """
    pairs = [
        ("a big red  dog", "a big red dog sits", "4.8"),
        ("a dog runs", "the house", "0.2"),
        ("not scored", "at all", ""),
        ("a small tree", "the blue tree", "2.5"),
    ]
    for task, names in SUBSETS.items():
        folder = root / "STS" / f"{task}-en-test"
        folder.mkdir(parents=True)
        for name in names:
            inputs = "".join(f"{first}\t{second}\n" for first, second, _ in pairs)
            (folder / f"STS.input.{name}.txt").write_text(inputs, encoding="utf-8")
            gold = "".join(f"{score}\n" for *_, score in pairs)
            (folder / f"STS.gs.{name}.txt").write_text(gold, encoding="utf-8")
    bench = root / "STS" / "STSBenchmark"
    bench.mkdir()
    scored = [pair for pair in pairs if pair[2]]
    lines = [f"main\tsrc\t2012\t{i}\t{s}\t{a}\t{b}" for i, (a, b, s) in enumerate(scored)]
    # Some rows carry licence columns, and quotes are plain characters.
    lines[1] += "\thttp://a\tlicence"
    lines.append('main\tsrc\t2012\t9\t1.0\t"a dog\tthe "tree"')
    for split in ("train", "dev", "test"):
        (bench / f"sts-{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sick = root / "SICK"
    sick.mkdir()
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows = "".join(f"{i}\t{a}\t{b}\t{s}\tNEUTRAL\n" for i, (a, b, s) in enumerate(scored))
    for name in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        (sick / name).write_text(header + rows, encoding="utf-8")
    return root
