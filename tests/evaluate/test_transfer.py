"""Transfer tasks: files read as SentEval reads them, classifiers equal to individually trained."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import torch
from away import away

from sightline.errors import SightlineError
from train.evaluate import transfer
from train.evaluate.softmax_classifiers import ClassifierSettings, Fold, fit_classifiers
from train.evaluate.task import SubsetSettings

SHORT = ClassifierSettings(max_epoch=24)


@pytest.fixture
def downstream(tmp_path):
    """The files of all seven tasks, three to six examples each."""
    files = {
        "MR/rt-polarity.pos": "a  good film\nvery\xe9 good\n",
        "MR/rt-polarity.neg": "bad .\n",
        "CR/custrev.pos": "nice phone\n\nit works\n",
        "CR/custrev.neg": "broken\x85cheap thing\n",
        "SUBJ/subj.objective": "he walks home\r\nshe stays\r\n",
        "SUBJ/subj.subjective": "a joy\n",
        "MPQA/mpqa.pos": "hope\nfreedom\n",
        "MPQA/mpqa.neg": "an axis of evil\n",
        "SST/binary/sentiment-train": "a moving  film\t1\ndull\t0\nfine caf\u00e9\t1\n",
        "SST/binary/sentiment-dev": "dull\t0\ngreat\t1\n",
        "SST/binary/sentiment-test": "a great film\t1\nboring film\t0\n",
        "TREC/train_5500.label": "HUM:ind Who wrote\xe9 it ?\nNUM:date When ?\nDESC:def What ?\n",
        "TREC/TREC_10.label": "ABBR:exp What is NASA ?\nLOC:city Where is Rome ?\n",
        "MRPC/msr_paraphrase_train.txt": (
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
            '1\t1\t2\ta "quoted  dog\tthe dog\n0\t3\t4\ta cat\ttwo cats sleep\n'
            "1\t5\t6\ta cat\tone cat\n"
        ),
        "MRPC/msr_paraphrase_test.txt": "Quality\tA\tB\tC\tD\n0\t1\t2\tit rains\tit pours\n",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        utf8 = name.startswith(("SST", "MRPC"))
        file.write_bytes(text.encode("utf-8" if utf8 else "latin-1"))
    return tmp_path


def made(protocol, sizes, classes=2, name="MADE", pairs=False, seed=0):
    """A task whose sentences are numbers, and an encoder whose rows reveal their classes."""
    rng = np.random.default_rng(seed)
    splits, rows = {}, []
    centres = rng.standard_normal((classes, 12))
    for split, size in sizes.items():
        labels = rng.integers(0, classes, size)
        sides = []
        for _ in range(2 if pairs else 1):
            sides.append(tuple(str(len(rows) + number) for number in range(size)))
            rows.extend(0.7 * centres[labels] + rng.standard_normal((size, 12)))
        splits[split] = transfer.Examples(labels, *sides)
    embeddings = np.array(rows, dtype=np.float32)
    task = transfer.TransferTask(name, protocol, classes, splits)
    return task, lambda sentences: embeddings[[int(sentence) for sentence in sentences]]


def accuracy(task, encode, **options):
    return transfer.evaluate_transfer(encode, {task.name: task}, **options).scores[task.name]


def chosen(task, encode, folds, recipe):
    """Mean accuracy and dev accuracy, rounded as SentEval does, and every penalty."""
    features = transfer.features_of(task, encode(list(task.sentences)))
    choices = transfer.choices_of(task, features, "cpu", folds, recipe)
    penalties, dev_accuracies, accuracies = zip(*choices, strict=True)
    accuracy, dev_accuracy = (
        round(float(np.mean(values)), 2) for values in (accuracies, dev_accuracies)
    )
    return accuracy, dev_accuracy, list(penalties)


def test_files_are_read_as_senteval_reads_them(downstream):
    data = transfer.load_transfer(downstream)
    assert tuple(data) == transfer.TRANSFER_TASKS
    train = {name: task.splits["train"] for name, task in data.items()}
    # Fewest words first; of equally many the lower label; words joined by single spaces.
    assert train["MR"].first == ("bad .", "veryé good", "a good film")
    assert train["MR"].labels.tolist() == [0, 1, 1]
    # An empty line is an example, and U+0085 ends a line.
    assert train["CR"].first == ("", "broken", "cheap thing", "nice phone", "it works")
    assert train["CR"].labels.tolist() == [1, 0, 0, 1, 1]
    assert train["SUBJ"].first == ("a joy", "she stays", "he walks home")
    assert train["SUBJ"].labels.tolist() == [0, 1, 1]
    assert train["SST-2"].first == ("dull", "fine café", "a moving film")
    assert [len(part) for part in data["SST-2"].splits.values()] == [3, 2, 2]
    assert train["TREC"].first == ("What ?", "When ?", "Who wroteé it ?")
    assert train["TREC"].labels.tolist() == [1, 5, 3]
    assert data["TREC"].classes == 6
    assert train["MRPC"].first == ("a cat", "a cat", 'a "quoted dog')
    assert train["MRPC"].second == ("one cat", "two cats sleep", "the dog")
    assert train["MRPC"].labels.tolist() == [1, 0, 1]


def test_counts_that_differ_from_the_published_are_a_warning(downstream):
    assert transfer.Transfer(SubsetSettings(data=downstream, subsets=("TREC",))).warnings == (
        "TREC train: 3 examples, but published results have 5452; scores are not comparable "
        "with them",
        "TREC test: 2 examples, but published results have 500; scores are not comparable "
        "with them",
    )


def test_the_digest_changes_with_a_label_and_with_a_sentence(downstream):
    file = downstream / "SST/binary/sentiment-test"
    before = file.read_text()
    digests = []
    for text in (before, before.replace("1", "0"), before.replace("boring", "dull"), before):
        file.write_text(text)
        digests.append(transfer.load_transfer(downstream, ["SST-2"])["SST-2"].sha256)
    assert digests[0] == digests[-1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("SST/binary/sentiment-train", b"fine\t1\nfilm\n", "line 2: found 'film'"),
        ("SST/binary/sentiment-train", b"fine\t2\n", r"line 1: found 'fine\t2'"),
        ("SST/binary/sentiment-dev", b"caf\xe9\t1\n", "line 1: the byte 0xe9 is not UTF-8"),
        ("SST/binary/sentiment-test", b"", "no examples"),
        ("TREC/train_5500.label", b"NUM:date When ?\nWho ?\n", "line 2: found 'Who ?'"),
        ("TREC/train_5500.label", b"WHO:ind Who ?\n", "line 1: found 'WHO:ind Who ?'"),
        ("TREC/TREC_10.label", b"NUM:date\n", "line 1: found 'NUM:date'"),
        ("TREC/TREC_10.label", b"", "no examples"),
        ("MRPC/msr_paraphrase_train.txt", b"Quality\n1\t2\t3\ta\n", "line 2: found"),
        ("MRPC/msr_paraphrase_train.txt", b"Quality\nyes\t2\t3\ta\tb\n", "line 2: found"),
        ("MRPC/msr_paraphrase_test.txt", b"Quality\n", "no examples"),
        ("MPQA/mpqa.neg", b"", "no examples"),
        ("MR/rt-polarity.neg", None, "no such file; expected SentEval's data/downstream folder"),
        ("SST/binary/sentiment-dev", None, "no such file"),
    ],
)
def test_a_bad_file_is_named(downstream, file, data, message):
    (downstream / file).unlink()
    if data is not None:
        (downstream / file).write_bytes(data)
    with pytest.raises(SightlineError) as caught:
        transfer.load_transfer(downstream)
    assert str(caught.value).startswith(str(downstream / file))
    assert message in str(caught.value)


def test_an_unknown_task_lists_the_valid_ones(downstream):
    with pytest.raises(SightlineError, match="'SST-5'; choose from MR, CR"):
        transfer.load_transfer(downstream, ["SST-5"])


def by_hand(task, encode, folds, max_epoch=24):
    """Accuracy, dev accuracy and penalties of a task's classifiers trained one by one."""
    parts = []
    for examples in task.splits.values():
        u = encode(examples.first)
        if examples.second:
            v = encode(examples.second)
            u = np.c_[np.abs(u - v), u * v]
        parts.append((u, examples.labels))
    (x, y), *others = parts
    if task.protocol == "nested":
        return one_by_one.nested(x, y, task.classes, folds, max_epoch=max_epoch)
    if task.protocol == "k-fold":
        return one_by_one.k_fold(x, y, others[0], task.classes, folds, max_epoch=max_epoch)
    return one_by_one.split(x, y, *others, task.classes, max_epoch=max_epoch)


@pytest.mark.parametrize(
    ("protocol", "sizes", "folds", "more", "max_epoch"),
    [
        ("nested", {"train": 331}, 3, {}, 24),
        ("k-fold", {"train": 400, "test": 90}, 4, {"classes": 6}, 24),
        ("k-fold", {"train": 210, "test": 60}, 3, {"pairs": True}, 24),
        # until training stops early, and where it continues to the maximum number of epochs
        ("split", {"train": 300, "dev": 70, "test": 80}, 2, {"seed": 3}, 200),
        ("split", {"train": 300, "dev": 70, "test": 80}, 2, {"seed": 3}, 8),
    ],
)
def test_classifiers_equal_those_trained_one_by_one(protocol, sizes, folds, more, max_epoch):
    task, encode = made(protocol, sizes, **more)
    recipe = ClassifierSettings(max_epoch=max_epoch)
    assert chosen(task, encode, folds, recipe) == by_hand(task, encode, folds, max_epoch)


def test_every_classifier_has_the_weights_of_one_trained_alone():
    """Folds of unequal lengths, with another number of steps, with and without dev rows."""
    task, encode = made("split", {"train": 400})
    examples = task.splits["train"]
    x, y = encode(examples.first), examples.labels
    rows = np.random.default_rng(5).permutation(400)
    folds = [
        Fold(rows[:130], rows[300:]),
        Fold(rows[3:131], rows[200:260]),
        Fold(rows[:127], rows[300:]),
        Fold(rows[50:180]),
    ]
    fitted = fit_classifiers(
        torch.from_numpy(x), torch.from_numpy(y), 2, folds, ClassifierSettings()
    )
    for number, fold in enumerate(folds):
        dev = None if fold.dev is None else (x[fold.dev], y[fold.dev])
        for column, l2 in enumerate(one_by_one.L2):
            alone = one_by_one.train_one(x[fold.train], y[fold.train], 2, l2, dev)
            weights = fitted.weights[number, column]
            torch.testing.assert_close(weights[:, :-1], alone.model.weight, atol=1e-4, rtol=1e-3)
            torch.testing.assert_close(weights[:, -1], alone.model.bias, atol=1e-4, rtol=1e-3)
            assert fitted.dev_accuracy[number, column] == alone.dev_accuracy
            rows_trained = len(fold.train) - (0 if dev else int(0.05 * len(fold.train)))
            steps = fitted.passes[number, column] * -(-rows_trained // 64)
            assert steps == alone.steps


def test_dividing_folds_for_memory_changes_no_accuracy_and_no_random_state(monkeypatch):
    task, encode = made("nested", {"train": 200}, seed=2)
    np.random.seed(7)
    torch.manual_seed(7)
    expected = np.random.rand(), float(torch.rand(()))
    np.random.seed(7)
    torch.manual_seed(7)
    together = accuracy(task, encode, folds=3, recipe=SHORT)
    assert (np.random.rand(), float(torch.rand(()))) == expected
    monkeypatch.setattr("train.evaluate.softmax_classifiers._BATCH_BYTES_ON_CPU", 1)
    assert accuracy(task, encode, folds=3, recipe=SHORT) == together


def test_another_device_gives_the_accuracies_of_the_cpu():
    task, encode = made("nested", {"train": 200}, seed=2)
    expected = accuracy(task, encode, folds=3, recipe=SHORT)
    with away():
        assert accuracy(task, encode, folds=3, recipe=SHORT, device="mps") == expected


@pytest.mark.gpu
def test_a_gpu_gives_the_accuracies_of_the_cpu():
    task, encode = made("nested", {"train": 600})
    on_cpu = accuracy(task, encode, folds=4)
    on_gpu = accuracy(task, encode, folds=4, device="cuda")
    assert on_gpu == pytest.approx(on_cpu, abs=0.3)


def test_equal_means_choose_the_first_penalty():
    accuracies = np.array([[0.5, 0.70001, 0.7], [0.5, 0.7, 0.7]])
    assert transfer.choose(accuracies) == (1, 70.0)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_tasks_side_by_side_are_those_alone_in_one_call_of_the_encoder(two_threads):
    task, encode = made("k-fold", {"train": 60, "test": 20})
    other, _ = made("nested", {"train": 80}, name="OTHER")
    asked = []

    def record(sentences):
        asked.append(list(sentences))
        return encode(sentences)

    recipe = ClassifierSettings(max_epoch=8)
    data = {"MADE": task, "OTHER": other}
    scores = transfer.evaluate_transfer(record, data, folds=2, recipe=recipe).scores
    assert torch.get_num_threads() == 2
    assert [len(sentences) for sentences in asked] == [160]
    alone = {each.name: accuracy(each, encode, folds=2, recipe=recipe) for each in (task, other)}
    assert scores == alone  # two of the seven tasks have no mean


def test_embeddings_that_are_not_finite_have_no_score_and_say_why():
    task, encode = made("k-fold", {"train": 60, "test": 20})
    broken = encode(list(task.sentences))
    broken[3] = np.nan
    found = transfer.evaluate_transfer(lambda sentences: broken, {"MADE": task}, folds=2)
    assert found.scores == {"MADE": None}
    assert found.reasons["MADE"] == "features of 1 of 80 examples are not finite"


def test_too_few_examples_of_a_class_are_named():
    labels = np.array([0] * 30 + [1] * 10)
    examples = transfer.Examples(labels, tuple(str(number) for number in range(40)))
    for protocol in ("nested", "k-fold"):
        task = transfer.TransferTask("MADE", protocol, 3, {"train": examples, "test": examples})
        with pytest.raises(SightlineError, match="smallest class has 0 training examples"):
            transfer.selections(task, 10, 1111)
    task = transfer.TransferTask("MADE", "nested", 2, {"train": examples})
    with pytest.raises(SightlineError, match="has 10 training examples, too few for 10"):
        transfer.selections(task, 10, 1111)
    assert len(transfer.selections(task, 5, 1111)) == 5
    parts = {"train": examples, "dev": examples, "test": examples}
    with pytest.raises(SightlineError, match="MADE: class 2 of 3 has no training example"):
        transfer.selections(transfer.TransferTask("MADE", "split", 3, parts), 10, 1111)


def test_counts_of_the_real_files(senteval_files):
    data = transfer.load_transfer(senteval_files)
    for name, task in data.items():
        counts = {split: len(part) for split, part in task.splits.items()}
        assert counts == transfer.EXPECTED_EXAMPLES[name]
    positive = {
        name: int(data[name].splits["train"].labels.sum()) for name in transfer.TRANSFER_TASKS[:4]
    }
    assert positive == {"MR": 5331, "CR": 2407, "SUBJ": 5000, "MPQA": 3312}


def test_real_questions_equal_one_by_one(senteval_files):
    def letters(sentences):
        counts = [[s.lower().count(letter) for letter in "?abcdefghwmny"] for s in sentences]
        return np.array(counts, dtype=np.float32)

    task = transfer.load_transfer(senteval_files, ["TREC"])["TREC"]
    tested, dev_accuracy, penalties = chosen(task, letters, 2, ClassifierSettings(max_epoch=4))
    expected = by_hand(task, letters, 2, max_epoch=4)
    assert tested == pytest.approx(expected[0], abs=0.3)
    assert dev_accuracy == pytest.approx(expected[1], abs=0.1)
    assert penalties == expected[2]
    assert tested > 30
