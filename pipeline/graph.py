"""params.yaml → the paths and inputs of every stage, relative to the root of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.params import FILE_NAME, ParamsError
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pipeline.datasets.joined import JoinedSource
    from pipeline.extract.inputs import FeatureInputs
    from pipeline.params import Params
    from sightline.cache.prepared import PreparedDataset
    from sightline.cache.record import Kind
    from train.objectives import FeatureNeed
    from train.run_spec import RunSpec

FEATURES = Path("data/features")
"""Every feature set lies below."""


def dataset_folder(dataset: str) -> Path:
    """Manifests of a data set, and the files of a generated one."""
    return Path("data/datasets") / dataset


def images_manifest(dataset: str) -> Path:
    """The images of a data set."""
    return dataset_folder(dataset) / "images.parquet"


def captions_manifest(dataset: str) -> Path:
    """Its captions."""
    return dataset_folder(dataset) / "captions.parquet"


def sentences_manifest(dataset: str) -> Path:
    """Its sentences."""
    return dataset_folder(dataset) / "sentences.parquet"


def image_root(params: Params, dataset: str) -> Path:
    """Base folder of the paths in a data set's image manifest.

    Raises:
        SightlineError: there is no such data set, or its images are not on this machine.
    """
    source = (
        joined_source(params, dataset)
        if dataset in params.joined
        else params.dataset(dataset).source
    )
    return source.image_root(dataset_folder(dataset))


def joined_source(params: Params, dataset: str) -> JoinedSource:
    """The inputs of a joined data set."""
    from pipeline.datasets.joined import JoinedSource

    pair = params.joined[dataset]
    parts = [pair.first, pair.second]
    return JoinedSource(
        parts={part: dataset_folder(part) for part in parts},
        images={part: image_root(params, part) for part in parts},
    )


def grounding_folder(dataset: str) -> Path:
    """Records of a data set's grounding."""
    return Path("data/objects") / dataset


def cutouts_folder(dataset: str) -> Path:
    """Cut-outs of its objects; a separate folder, to keep restricted photographs off a remote."""
    return Path("data/cutouts") / dataset


def features_folder(dataset: str, kind: str, encoder: str) -> Path:
    """One feature set."""
    return FEATURES / dataset / kind / encoder


def below_features(folder: Path) -> tuple[str, ...]:
    """Data set, kind and encoder from the path of a feature folder; None for other paths."""
    try:
        return folder.resolve().relative_to(FEATURES.resolve()).parts
    except ValueError:
        return ()


def tokens_folder(student: str) -> Path:
    """Every training text, tokenised for one student."""
    return Path("data/tokens") / student


def phrase_tokens_folder(dataset: str, student: str) -> Path:
    """Token spans of a data set's phrases for one student."""
    return Path("data/phrase-tokens") / dataset / student


def code_file(system: str) -> Path:
    """Digests of the source code that trains a system."""
    return Path("data/code") / f"{system}.json"


def runs_folder() -> Path:
    """Every training run, one folder each."""
    return Path("runs")


def run_folder(run: str, seed: int) -> Path:
    """One training run: checkpoints, log and the finished model."""
    return runs_folder() / run / f"seed-{seed}"


def results_folder() -> Path:
    """The scores of every run, one folder each."""
    return Path("results")


def report_folder() -> Path:
    """The comparison of all runs."""
    return Path("report")


def evaluation_file(task: str) -> Path:
    """What an evaluation task measures, with the digests of its data."""
    return Path("data/evaluation") / f"{task}.json"


def result_file(run: str, seed: int) -> Path:
    """The scores of one training run."""
    return results_folder() / run / f"seed-{seed}.json"


def prepared(params: Params, dataset: str) -> PreparedDataset:
    """A data set, with the folder of its images; None where it is not known on this machine."""
    from sightline.cache.prepared import PreparedDataset

    try:
        root = image_root(params, dataset)
    except SightlineError:
        root = None
    return PreparedDataset(dataset_folder(dataset), root)


def feature_inputs(params: Params, dataset: str, kind: Kind) -> FeatureInputs:
    """What a feature set of this kind over a data set is made of.

    Objects come from the stored cut-outs where these have them, else from their images.

    Raises:
        SightlineError: no such data set, a manifest is missing, or images that are needed.
    """
    from pipeline.extract.inputs import inputs_of

    data, stored = prepared(params, dataset), cutouts_folder(dataset)
    if kind != "object":
        return inputs_of(kind, data)
    return inputs_of(
        kind,
        data,
        phrases=grounding_folder(dataset),
        rules=params.extract.cutouts,
        cutouts=stored if (stored / "set.json").is_file() else None,
    )


def training_texts(params: Params) -> list[Path]:
    """The manifests of all training texts."""
    return [captions_manifest(params.graph.pairs), sentences_manifest(params.graph.text)]


def run_spec(params: Params, run: str, seed: int) -> RunSpec:
    """The specification of training ``run`` with ``seed``, with explicit paths.

    Raises:
        SightlineError: parameters that the objective does not have or allow, pairs are needed but
            graph.pairs has none, or the run reads different features than its system.
    """
    from train.objectives import make_objective
    from train.run_spec import PairSource, RunSpec, TextSource

    config = params.run(run)
    objective = make_objective(config.objective, config.parameters)
    needs = objective.features
    _require_features_of_the_system(params, run, {_feature_set(need) for need in needs})
    pairs, text, student = params.graph.pairs, params.graph.text, params.student
    train = config.train
    has_pairs = pairs in params.joined or params.dataset(pairs).source.has_pairs
    return RunSpec(
        run=run,
        student=student,
        train=train,
        objective=config.objective,
        parameters=config.parameters,
        seed=seed,
        pairs=PairSource(
            captions=captions_manifest(pairs),
            images=images_manifest(pairs),
            tokens=tokens_folder(student.name),
            phrases=phrase_tokens_folder(pairs, student.name)
            if any(need.kind == "object" for need in needs)
            else None,
        )
        if has_pairs
        else None,
        text=TextSource(sentences=sentences_manifest(text), tokens=tokens_folder(student.name))
        if objective.trains_on_text and train.text_stream
        else None,
        features={need.name: features_folder(pairs, need.kind, need.encoder) for need in needs},
        dev=params.evaluation.dev,
        out=run_folder(run, seed),
        device=params.machine.device,
    )


def _feature_set(need: FeatureNeed) -> str:
    return f"{need.kind}/{need.encoder}"


def _require_features_of_the_system(params: Params, run: str, read: set[str]) -> None:
    """Check that a run reads only the features its dvc.yaml stage depends on, the system's."""
    from train.objectives import make_objective

    name = params.run(run).system
    system = params.systems[name]
    objective = make_objective(str(system.objective), system.parameters)
    declared = {_feature_set(need) for need in objective.features}
    if more := sorted(read - declared):
        raise ParamsError(
            f"{FILE_NAME}: systems.{name}.runs.{run} reads {', '.join(more)}, and its system reads "
            f"{', '.join(sorted(declared)) or 'no features'}. Other encoders or "
            "teachers are another system: give it an entry under `systems` and a train stage in "
            "dvc.yaml"
        )
