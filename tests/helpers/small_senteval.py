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


def write_transfer(root: Path, each: int = 12) -> Path:
    """Write the files of the seven transfer tasks below ``root``, ``each`` examples of a class."""
    nouns, verbs = ("dog", "tree", "house"), ("sits", "runs", "stands", "is")

    def text(label: int, number: int) -> str:
        colour = ("red", "blue", "green", "white", "small", "big")[label]
        return (
            f"the {colour} {nouns[number % 3]} {verbs[number % 4]} {'near ' * (number // 4)}a dog"
        )

    def lines(label: int, pattern: str = "{}") -> list[str]:
        return [pattern.format(text(label, number)) for number in range(each)]

    both = [row for pair in zip(lines(0, "{}\t0"), lines(1, "{}\t1"), strict=True) for row in pair]
    types = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    questions = [row for label, name in enumerate(types) for row in lines(label, name + ":x {}")]
    pairs = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    pairs += [f"1\t1\t2\t{a}\t{a}" for a in lines(0)]
    pairs += [f"0\t1\t2\t{a}\t{b}" for a, b in zip(lines(0), lines(1), strict=True)]
    files = {
        "MR/rt-polarity.pos": lines(1),
        "MR/rt-polarity.neg": lines(0),
        "CR/custrev.pos": lines(1),
        "CR/custrev.neg": lines(0),
        "SUBJ/subj.objective": lines(1),
        "SUBJ/subj.subjective": lines(0),
        "MPQA/mpqa.pos": lines(1),
        "MPQA/mpqa.neg": lines(0),
        **{f"SST/binary/sentiment-{split}": both for split in ("train", "dev", "test")},
        "TREC/train_5500.label": questions,
        "TREC/TREC_10.label": questions,
        "MRPC/msr_paraphrase_train.txt": pairs,
        "MRPC/msr_paraphrase_test.txt": pairs,
    }
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(content) + "\n", encoding="utf-8")
    return root
