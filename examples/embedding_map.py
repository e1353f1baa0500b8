"""DALR's figures 3 and 4: a map of captions in clusters, and cosines of pairs by gold score.

    python examples/embedding_map.py --captions DATA --pairs PAIRS --out FILE MODEL...

such as: --captions data/datasets/coco --out map.png runs/dalr/seed-0/model
(DATA is a prepared data set, of which 5,000 test captions are drawn; PAIRS is SentEval's
`downstream` folder, for STS-B test, or a TSV. One of the two is enough.)
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import binned_statistic, spearmanr
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

import sightline as sl
from train.evaluate.sts import load_graded_pairs

CAPTIONS, PERPLEXITY, SEED = 5000, 30, 0


def read_captions(folder, clusters):
    """Distinct captions of the test split."""
    rows = sl.PreparedDataset.open(folder).captions.to_pylist()
    texts = list(dict.fromkeys(row["text"] for row in rows if row["split"] == "test"))
    if len(texts) <= max(PERPLEXITY, clusters):
        raise sl.SightlineError(
            f"{folder}: {len(texts)} captions in the split test; expected more than t-SNE's "
            f"perplexity, {PERPLEXITY}, and than --clusters, {clusters}"
        )
    return np.random.default_rng(SEED).permutation(np.array(texts))[:CAPTIONS].tolist()


def draw_map(axis, rows, clusters):
    """Figure 3: a dot per caption on a plane, in the colour of its cluster."""
    if len(np.unique(rows.round(6), axis=0)) < clusters:
        raise sl.SightlineError(f"fewer than {clusters} embeddings differ; lower --clusters")
    labels = KMeans(clusters, n_init=10, random_state=SEED).fit_predict(rows)
    x, y = TSNE(perplexity=PERPLEXITY, init="pca", random_state=SEED).fit_transform(rows).T
    axis.scatter(x, y, s=4, c=labels, cmap="turbo")
    axis.set(xticks=[], yticks=[])
    return f"silhouette {silhouette_score(rows, labels, metric='cosine'):.3f}"


def draw_cosines(axis, cosines, gold):
    """Figure 4: a dot per pair, and the mean cosine in each fifth of the gold scores."""
    means, edges, _ = binned_statistic(gold, cosines, bins=5)
    axis.scatter(gold, cosines, s=4, alpha=0.4)
    axis.plot((edges[1:] + edges[:-1]) / 2, means, "o-", color="tab:orange")
    axis.set(xlabel="gold score", ylabel="cosine", ylim=(-1, 1))
    spearman = 100 * spearmanr(gold, cosines).statistic  # pyright: ignore
    return f"Spearman × 100 {spearman:.2f}, mean cosines {means.round(3).tolist()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--captions", metavar="DATA")
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--clusters", type=int, default=50, help="of k-means")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="PNG, SVG or PDF")
    options = parser.parse_args()
    figures = (options.captions is not None) + (options.pairs is not None)
    if not figures or options.out.suffix not in (".png", ".svg", ".pdf"):
        parser.error("expected --captions, --pairs or both, and a --out of .png, .svg or .pdf")
    captions = read_captions(options.captions, options.clusters) if options.captions else []
    pairs = load_graded_pairs(options.pairs, "test") if options.pairs else None
    figure = Figure((3.5 * len(options.models), 3.5 * figures), layout="constrained")
    panels = figure.subplots(figures, len(options.models), squeeze=False)
    for name, axes in zip(options.models, panels.T, strict=True):
        encoder = sl.Embedder.load(name)
        axes[0].set_title(name, fontsize=8)
        if captions:
            rows = encoder.encode(captions, normalize=True)
            print(f"{name}: {draw_map(axes[0], rows, options.clusters)}")
        if pairs:
            first, second = (encoder.encode(s, normalize=True) for s in (pairs.first, pairs.second))
            print(f"{name}: {draw_cosines(axes[-1], (first * second).sum(axis=1), pairs.gold)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=180)


if __name__ == "__main__":
    try:
        main()
    except sl.SightlineError as error:
        sys.exit(f"error: {error}")
