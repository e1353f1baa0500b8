"""Mean cosine, spectrum, clusters and their agreement against their definitions."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from sightline.errors import SightlineError
from train.evaluate.similarity import GradedPairs
from train.evaluate.space import (
    GOLD,
    MapSentences,
    MapSettings,
    SpaceStudy,
    agreement,
    binned_means,
    cluster,
    distinct_directions,
    mean_cosine,
    read_map_sentences,
    relabel,
    silhouette,
    spectrum,
    tsne,
)

RANDOM = np.random.default_rng(5)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def blobs(groups=4, each=12, width=6, seed=0, spread=0.05):
    """Tight groups around distinct axes: rows in turn, one of every group."""
    random = np.random.default_rng(seed)
    centres = np.eye(width)[:groups]
    labels = np.tile(np.arange(groups), each)
    noise = spread * random.standard_normal((len(labels), width))
    return (centres[labels] + noise) * random.uniform(0.5, 2, (len(labels), 1)), labels


def test_the_mean_cosine_is_over_all_pairs_of_different_rows():
    rows = RANDOM.standard_normal((9, 4)) + 0.5
    points = unit(rows)
    expected = np.mean([a @ b for a, b in itertools.combinations(points, 2)])
    assert mean_cosine(rows * 7) == pytest.approx(expected, abs=1e-12)
    assert mean_cosine(np.ones((3, 2))) == pytest.approx(1)
    assert mean_cosine(np.array([[1.0, 0], [0, 2]])) == pytest.approx(0, abs=1e-12)
    with pytest.raises(SightlineError, match="two distinct sentences; found 1"):
        mean_cosine(np.ones((1, 2)))
    with pytest.raises(SightlineError, match="1 of 2 embeddings are zero or not finite"):
        mean_cosine(np.array([[0.0, 0], [1, 1]]))


def test_the_spectrum_is_that_of_the_second_moment():
    rows = RANDOM.standard_normal((30, 5)) * [1, 2, 3, 4, 5]
    points = unit(rows)
    found = spectrum(rows)
    eigenvalues = np.linalg.eigvalsh(points.T @ points / 30)[::-1]
    assert found.singular_values**2 == pytest.approx(eigenvalues)
    assert (found.singular_values**2).sum() == pytest.approx(1)
    shares = found.singular_values / found.singular_values.sum()
    entropy = -sum(p * math.log(p) for p in shares)
    assert found.effective_rank == pytest.approx(math.exp(entropy))


def test_the_effective_rank_counts_directions():
    assert spectrum(np.ones((4, 3))).effective_rank == pytest.approx(1)
    assert spectrum(np.eye(3)[[0, 1, 2] * 4]).effective_rank == pytest.approx(3)
    assert spectrum(np.eye(3)[[0, 1] * 4]).effective_rank == pytest.approx(2)


def plain_rand(one, two):
    """Adjusted Rand index from pairs of items, as Hubert and Arabie define it."""
    pairs = list(itertools.combinations(range(len(one)), 2))
    both = sum(one[i] == one[j] and two[i] == two[j] for i, j in pairs)
    first, second = (sum(x[i] == x[j] for i, j in pairs) for x in (one, two))
    expected = first * second / len(pairs)
    return (both - expected) / ((first + second) / 2 - expected)


def plain_information(one, two):
    def entropy(labels):
        return -sum(c / n * math.log(c / n) for c in Counter(labels).values())

    n = len(one)
    joint = entropy(list(zip(one, two, strict=True)))
    return (entropy(one) + entropy(two) - joint) / ((entropy(one) + entropy(two)) / 2)


def test_agreement_is_that_of_pairs_and_of_entropies():
    one, two = [0, 0, 1, 1, 2, 2, 2, 0], [1, 1, 0, 2, 2, 2, 0, 1]
    found = agreement(np.array(one), np.array(two))
    assert found.adjusted_rand == pytest.approx(plain_rand(one, two))
    assert found.mutual_information == pytest.approx(plain_information(one, two))
    same = agreement(np.array(one), 7 - np.array(one))
    assert (same.adjusted_rand, same.mutual_information) == pytest.approx((1, 1))


def test_clusters_are_found_whatever_the_norms_and_are_repeatable():
    rows, labels = blobs()
    found = cluster(rows, 4, seed=1)
    assert agreement(found, labels).adjusted_rand == 1
    assert np.array_equal(found, cluster(rows, 4, seed=1))
    assert silhouette(rows, found) > 0.9
    assert silhouette(rows, RANDOM.integers(0, 4, len(rows))) < 0.1


def test_the_map_keeps_groups_together_and_is_repeatable():
    rows, labels = blobs(each=15)
    points = tsne(rows, perplexity=8, seed=2)
    assert points.shape == (60, 2)
    assert np.array_equal(points, tsne(rows, perplexity=8, seed=2))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag([np.inf] * 60)
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_labels_are_renamed_to_those_that_share_most():
    reference = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    labels = np.array([2, 2, 0, 0, 0, 1, 1, 1])
    assert relabel(labels, reference).tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    # the best pairing in total, by trying all
    labels = RANDOM.integers(0, 4, 50)
    reference = RANDOM.integers(0, 4, 50)
    best = max(
        (np.array(names)[labels] == reference).sum() for names in itertools.permutations(range(4))
    )
    assert (relabel(labels, reference) == reference).sum() == best


def test_distinct_directions_ignore_norms_and_rounding():
    rows = np.array([[1.0, 2], [2, 4], [1, 2 + 1e-9], [-1, -2], [0, 1]])
    assert distinct_directions(rows) == 3


def test_mean_cosines_in_ranges_of_the_gold_score():
    gold = np.array([0.0, 0.9, 1.0, 4.9, 5.0])
    cosines = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    edges, means, counts = binned_means(gold, cosines)
    assert edges.tolist() == [0, 1, 2, 3, 4, 5]
    assert counts.tolist() == [2, 1, 0, 0, 2]
    assert means[[0, 1, 4]] == pytest.approx([0.2, 0.5, 0.8])
    assert np.isnan(means[2:4]).all()


def study(texts=40, groups=None, **settings) -> tuple[SpaceStudy, dict[str, int]]:
    """Sentences "0" … in pairs of neighbours; and the number of each."""
    names = [str(i) for i in range(texts)]
    gold = np.linspace(0, 5, texts - 1)
    pairs = GradedPairs("toy", tuple(names[:-1]), tuple(names[1:]), gold)
    drawn = MapSentences("toy", tuple(names), groups, texts)
    chosen = MapSettings(**{"clusters": 4, "perplexity": 5.0, **settings})
    return SpaceStudy(pairs, drawn, chosen), {name: i for i, name in enumerate(names)}


def encoder(rows, number):
    return lambda texts: rows[[number[text] for text in texts]]


def test_models_share_the_names_of_clusters_and_agree_with_gold_groups():
    rows, labels = blobs(each=10)
    found, number = study(groups=tuple("abcd"[label] for label in labels))
    wide = np.concatenate([rows[:, ::-1], np.zeros((40, 3))], axis=1)  # another width and order
    one, two = found.add("one", encoder(rows, number)), found.add("two", encoder(wide, number))
    assert one.map is not None
    assert two.map is not None
    assert np.array_equal(one.map.labels, two.map.labels)
    assert (one.width, two.width) == (6, 9)
    assert list(found.groupings) == [GOLD, "one", "two"]
    assert {name: each.adjusted_rand for name, each in found.agreements().items()} == {
        (GOLD, "one"): 1,
        (GOLD, "two"): 1,
        ("one", "two"): 1,
    }


def test_constant_embeddings_have_no_map_and_no_score_but_do_not_fail():
    found, number = study()
    space = found.add("flat", encoder(np.ones((40, 3)), number))
    assert space.map is None
    assert space.no_map == "only 1 of 40 embeddings differ, too few for 4 clusters"
    assert space.similarity.spearman is None
    assert space.mean_cosine == pytest.approx(1)
    assert space.spectrum.effective_rank == pytest.approx(1)
    assert found.agreements() == {}


def test_a_zero_embedding_is_refused_with_the_models_name():
    found, number = study()
    rows = RANDOM.standard_normal((40, 3))
    rows[3] = 0
    with pytest.raises(SightlineError, match="broken: 1 of 40 embeddings are zero or not finite"):
        found.add("broken", encoder(rows, number))


@pytest.mark.parametrize("settings", [{"clusters": 40}, {"perplexity": 40.0}])
def test_more_sentences_than_clusters_and_perplexity_are_needed(settings):
    with pytest.raises(SightlineError, match=r"toy: 40 distinct sentences; .* lower --clusters"):
        study(**settings)


def test_sentences_of_a_map_are_drawn_without_repeats():
    texts = [str(i % 30) for i in range(90)]
    one = MapSentences.draw("x", texts, 10, seed=1)
    assert len(set(one.texts)) == 10
    assert one == MapSentences.draw("x", texts, 10, seed=1)
    assert one != MapSentences.draw("x", texts, 10, seed=2)
    assert one.drawn_from == 30
    assert MapSentences.draw("x", texts, 99, seed=1).texts == tuple(map(str, range(30)))


def test_a_tsv_gives_sentences_with_their_groups(tmp_path):
    file = tmp_path / "groups.tsv"
    lines = ["group\tsentence", *(f"g{i % 3}\tsentence  {i}" for i in range(9)), "g0\tsentence 0"]
    file.write_text("\n".join(lines) + "\n")
    found = read_map_sentences(file, 6, seed=0)
    assert found.drawn_from == 9
    assert found.groups is not None
    for text, group in zip(found.texts, found.groups, strict=True):
        assert group == f"g{int(text.split()[1]) % 3}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\n", r"line 1: found 'sentence', expected the header group<TAB>sentence"),
        ("group\tsentence\na\n", "line 2: 1 tab-separated columns, expected 2"),
        ("group\tsentence\na\t\n", "line 2: the group or the sentence is empty"),
        ("group\tsentence\na\tx\nb\tx\n", "line 3: this sentence is in group 'b' and, above, in"),
        ("group\tsentence\n", "a header and no sentences"),
    ],
)
def test_a_bad_tsv_is_refused_with_its_line(tmp_path, content, message):
    file = tmp_path / "groups.tsv"
    file.write_text(content)
    with pytest.raises(SightlineError, match=message):
        read_map_sentences(file, 6, seed=0)
