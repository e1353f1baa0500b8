"""Geometry of embeddings against its definitions: neighbours, alignment, spectrum, maps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from sightline.errors import SightlineError
from train.evaluate import geometry, space, vectors
from train.evaluate.similarity import GradedPairs

RANDOM = np.random.default_rng(5)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def plain_neighbours(query, candidates, k, skip=None):
    """Rows by descending cosine, the earlier of two equal ones first."""
    cosines = [round(float(one), 9) for one in unit(candidates) @ unit(query[None])[0]]
    rows = sorted((i for i in range(len(candidates)) if i != skip), key=lambda i: (-cosines[i], i))
    return rows[:k], [cosines[i] for i in rows[:k]]


@pytest.mark.parametrize("k", [1, 3, 40])
def test_neighbours_are_those_of_plain_loops_whatever_the_chunks(monkeypatch, k):
    queries = RANDOM.standard_normal((7, 5))
    candidates = np.concatenate([RANDOM.standard_normal((20, 5)), 3 * queries[:2]])
    left_out = {0: 20, 3: 4}
    for held, chunk in ((1 << 23, 4096), (60, 3)):
        monkeypatch.setattr(vectors, "_HELD", held)
        monkeypatch.setattr(vectors, "_CHUNK", chunk)
        found = vectors.nearest(queries, candidates, k, left_out)
        assert not found.constant
        for i, query in enumerate(queries):
            rows, cosines = plain_neighbours(query, candidates, k, left_out.get(i))
            assert found.rows[i].tolist() == rows
            assert found.cosines[i] == pytest.approx(cosines, abs=1e-12)


def test_equal_cosines_keep_the_order_of_the_candidates():
    one, two = np.array([[1.0, 2.0, 3.0]]), np.array([[-1.0, 1.0, 0.5]])
    candidates = np.concatenate([two, one * 7, one / 3, two * 2, one]).astype(np.float32)
    assert vectors.nearest(one, candidates, 5).rows[0].tolist() == [1, 2, 4, 0, 3]
    constant = vectors.nearest(np.ones((2, 3)), np.full((4, 3), 0.2), 3)
    assert constant.constant
    assert constant.rows[1].tolist() == [0, 1, 2]
    assert not vectors.nearest(one, two, 3).constant  # one candidate is no tie
    with pytest.raises(SightlineError, match="nothing to find neighbours among"):
        vectors.nearest(one, np.ones((0, 3)), 2)


def plain_uniformity(rows):
    rows = unit(rows)
    pairs = list(itertools.combinations(range(len(rows)), 2))
    kernel = [math.exp(-2 * ((rows[i] - rows[j]) ** 2).sum()) for i, j in pairs]
    return math.log(sum(kernel) / len(kernel))


def test_uniformity_is_over_the_whole_set_whatever_the_chunks(monkeypatch):
    rows = RANDOM.standard_normal((24, 5)) * 3
    expected = plain_uniformity(rows)
    for chunk in (1, 23, 24, 1024):
        monkeypatch.setattr(geometry, "_CHUNK", chunk)
        assert geometry.uniformity(rows) == pytest.approx(expected, abs=1e-12)


def graded(*rows):
    first, second, gold = zip(*rows, strict=True)
    return GradedPairs("toy", first, second, np.array(gold))


def planted(points):
    """An encoder that looks the texts up."""
    return lambda texts: np.array([points[text] for text in texts])


def test_geometry_takes_pairs_above_four_and_each_sentence_once():
    points = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}
    pairs = graded(("a", "b", 4.0), ("a", "c", 4.01), ("a", "b", 1.0))
    result = geometry.evaluate_geometry(planted(points), pairs)
    assert (result.positive_pairs, result.sentences) == (1, 3)
    assert result.alignment == pytest.approx(2 - math.sqrt(2))  # a and c alone
    assert result.uniformity == pytest.approx(plain_uniformity(np.array(list(points.values()))))


def test_the_released_evaluation_takes_means_of_batches_in_order_of_length(monkeypatch):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 2)
    texts = ["a b c", "a", "b b", "c c", "d", "e e e e", "f f"]
    points = {text: RANDOM.standard_normal(3) for text in texts}
    # by words of the first, then of the second sentence
    batches = [
        [("d", "a", 4.5), ("d", "e e e e", 1.0)],
        [("f f", "a", 2.0), ("b b", "c c", 4.0)],
        [("a b c", "a", 5.0)],
    ]
    close, spread = [], []
    for batch in batches:
        first, second = (unit(np.array([points[p[side]] for p in batch])) for side in (0, 1))
        positive = np.array([pair[2] >= 4 for pair in batch])
        close.append(((first - second) ** 2).sum(1)[positive].mean())
        spread.append(plain_uniformity(np.concatenate([first, second])))
    unordered = [row for batch in reversed(batches) for row in reversed(batch)]
    result = geometry.evaluate_geometry(planted(points), graded(*unordered))
    assert result.alignment_released == pytest.approx(np.mean(close))
    assert result.uniformity_released == pytest.approx(np.mean(spread))
    assert result.alignment != pytest.approx(result.alignment_released)


def test_what_is_not_defined_has_a_reason_and_a_released_batch_without_pairs_counts_as_nothing(
    monkeypatch,
):
    monkeypatch.setattr(geometry, "_RELEASED_BATCH", 1)
    pairs = graded(("a", "c", 4.0), ("b b", "a", 1.0))
    low = geometry.evaluate_geometry(planted({"a": [1.0, 0], "b b": [1, 1], "c": [0, 1.0]}), pairs)
    assert low.alignment is None
    assert low.reasons == ("no pair has a gold score above 4",)
    assert low.alignment_released == pytest.approx((2 + 0) / 2)
    zero = geometry.evaluate_geometry(lambda texts: np.zeros((len(texts), 2)), pairs)
    assert (zero.alignment, zero.uniformity) == (None, None)
    assert "3 of 3 embeddings are zero" in zero.reasons[0]


def test_the_mean_cosine_is_over_all_pairs_of_different_rows():
    rows = RANDOM.standard_normal((9, 4)) + 0.5
    expected = np.mean([a @ b for a, b in itertools.combinations(unit(rows), 2)])
    assert vectors.mean_cosine(rows * 7) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(SightlineError, match="two distinct sentences; found 1"):
        vectors.mean_cosine(np.ones((1, 2)))


def test_the_spectrum_is_that_of_the_second_moment():
    rows = RANDOM.standard_normal((30, 5)) * [1, 2, 3, 4, 5]
    points, found = unit(rows), vectors.spectrum(rows)
    eigenvalues = np.linalg.eigvalsh(points.T @ points / 30)[::-1]
    assert found.singular_values**2 == pytest.approx(eigenvalues)
    shares = found.singular_values / found.singular_values.sum()
    entropy = -sum(p * math.log(p) for p in shares)
    assert found.effective_rank == pytest.approx(math.exp(entropy))
    assert vectors.spectrum(np.eye(3)[[0, 1] * 4]).effective_rank == pytest.approx(2)


def test_agreement_is_that_of_pairs_and_of_entropies():
    found = space.agreement(np.array([5, 5, 3, 3]), np.array([0, 0, 1, 2]))
    # of 6 pairs 1 is together in both, 2 and 1 in each: (1 - 2/6) / (3/2 - 2/6)
    assert found.adjusted_rand == pytest.approx(4 / 7)
    # the entropies are 1 and 1.5 bits, of both together 1.5
    assert found.mutual_information == pytest.approx(1 / 1.25)


def test_labels_are_renamed_to_those_that_share_most():
    labels, reference = RANDOM.integers(0, 4, 50), RANDOM.integers(0, 4, 50)
    best = max(
        (np.array(names)[labels] == reference).sum() for names in itertools.permutations(range(4))
    )
    found = space.relabel(labels, reference)
    assert (found == reference).sum() == best  # the best pairing in total, of all
    assert space.agreement(found, labels).adjusted_rand == 1


def test_mean_cosines_in_ranges_of_the_gold_score():
    gold = np.array([0.0, 0.9, 1.0, 4.9, 5.0])
    cosines = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    edges, means, counts = space.binned_means(gold, cosines)
    assert edges.tolist() == [0, 1, 2, 3, 4, 5]
    assert counts.tolist() == [2, 1, 0, 0, 2]
    assert means[[0, 1, 4]] == pytest.approx([0.2, 0.5, 0.8])
    assert np.isnan(means[2:4]).all()


def study(groups=None, **settings):
    """Sentences "0" … "39" in pairs of neighbours."""
    names = tuple(map(str, range(40)))
    pairs = GradedPairs("toy", names[:-1], names[1:], np.linspace(0, 5, 39))
    chosen = space.MapSettings(**{"clusters": 4, "perplexity": 5.0, **settings})
    return space.SpaceStudy(pairs, space.MapSentences("toy", names, groups, 40), chosen)


def encoder(rows):
    return lambda texts: rows[[int(text) for text in texts]]


def test_maps_keep_groups_together_are_repeatable_and_share_the_names_of_clusters():
    # four tight groups of ten around distinct axes, of any norm: rows in turn, one of each
    random, labels = np.random.default_rng(0), np.tile(np.arange(4), 10)
    rows = np.eye(6)[labels] + 0.05 * random.standard_normal((40, 6))
    rows *= random.uniform(0.5, 2, (40, 1))
    groups = tuple("abcd"[label] for label in labels)
    found = study(groups)
    wide = np.concatenate([rows, np.zeros((40, 3))], axis=1)
    wide[:, 0] += 1  # so that k-means alone would number the clusters in another order
    one, two = found.add("one", encoder(rows)), found.add("two", encoder(wide))
    assert (one.width, two.width) == (6, 9)
    assert np.array_equal(one.map.labels, two.map.labels)
    assert list(found.groupings) == [space.GOLD, "one", "two"]
    assert {name: each.adjusted_rand for name, each in found.agreements().items()} == {
        (space.GOLD, "one"): 1,
        (space.GOLD, "two"): 1,
        ("one", "two"): 1,
    }
    assert one.map.silhouette > 0.9
    assert one.map.points.shape == (40, 2)
    distances = np.linalg.norm(one.map.points[:, None] - one.map.points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    assert (labels[distances.argmin(axis=1)] == labels).all()
    again = study(groups).add("one", encoder(rows)).map
    assert np.array_equal(one.map.labels, again.labels)
    assert np.array_equal(one.map.points, again.points)


def test_constant_embeddings_have_no_map_and_zero_ones_are_refused_with_the_models_name():
    found, rows = study(), np.ones((40, 3))
    rows[5, 1] += 1e-9  # rounding
    flat = found.add("flat", encoder(rows))
    assert flat.map is None
    assert flat.no_map == "only 1 of 40 embeddings differ, too few for 4 clusters"
    assert flat.similarity.spearman is None
    assert flat.mean_cosine == pytest.approx(1)
    assert flat.spectrum.effective_rank == pytest.approx(1, abs=1e-6)
    assert found.agreements() == {}
    rows[3] = 0
    with pytest.raises(SightlineError, match="broken: 1 of 40 embeddings are zero or not finite"):
        found.add("broken", encoder(rows))


@pytest.mark.parametrize("settings", [{"clusters": 40}, {"perplexity": 40.0}])
def test_more_sentences_than_clusters_and_perplexity_are_needed(settings):
    with pytest.raises(SightlineError, match=r"toy: 40 distinct sentences; .* lower --clusters"):
        study(**settings)


def test_sentences_of_a_map_are_drawn_without_repeats_and_keep_their_groups(tmp_path):
    texts = [str(i % 30) for i in range(90)]
    one = space.MapSentences.draw("x", texts, 10, seed=1)
    assert len(set(one.texts)) == 10
    assert one == space.MapSentences.draw("x", texts, 10, seed=1)
    assert one != space.MapSentences.draw("x", texts, 10, seed=2)
    assert one.drawn_from == 30
    assert space.MapSentences.draw("x", texts, 99, seed=1).texts == tuple(map(str, range(30)))
    file = tmp_path / "groups.tsv"
    lines = ["group\tsentence", *(f"g{i % 3}\tsentence  {i}" for i in range(9)), "g0\tsentence 0"]
    file.write_text("\n".join(lines) + "\n")
    found = space.read_map_sentences(file, 6, seed=0)
    assert found.drawn_from == 9
    assert found.groups == tuple(f"g{int(text.split()[1]) % 3}" for text in found.texts)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\n", r"expected the header group<TAB>sentence; add it, or give a captions"),
        ("group\tsentence\na\t\n", "line 2: the group or the sentence is empty"),
        ("group\tsentence\na\tx\nb\tx\n", "line 3: this sentence is in group 'b' and, above, in"),
    ],
)
def test_a_bad_tsv_is_refused_with_its_line(tmp_path, content, message):
    file = tmp_path / "groups.tsv"
    file.write_text(content)
    with pytest.raises(SightlineError, match=message):
        space.read_map_sentences(file, 6, seed=0)
