"""params.yaml → the paths and inputs of every stage, relative to the root of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.params import FILE_NAME, ParamsError
from sightline.cache.prepared import PreparedDataset

if TYPE_CHECKING:
    from pipeline.extract.inputs import FeatureInputs
    from pipeline.params import Params
    from sightline.cache.record import Kind
    from train.objectives import Objective
    from train.run_spec import RunSpec

FEATURES = Path("data/features")
"""Every feature set lies below."""
RUNS, RESULTS = Path("runs"), Path("results")
"""Every training run and its scores, one folder each."""
REPORT = Path("report")
"""The comparison of all runs."""


def dataset_folder(dataset: str) -> Path:
    """Manifests of a data set, and the files of a generated one."""
    return Path("data/datasets") / dataset


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
    """Data set, kind and encoder from the path of a feature folder; nothing for other paths."""
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


INPUTS = Path("data/inputs")
"""What the stages read that DVC does not see (`pipeline.inputs`)."""


def inputs_file(name: str) -> Path:
    """What the stages of a source, encoder, … read, such as ``systems/mcse-clip``."""
    return INPUTS / f"{name}.json"


def evaluation_file(task: str) -> Path:
    """What an evaluation task measures, with the digests of its data."""
    return Path("data/evaluation") / f"{task}.json"


def run_folder(run: str, seed: int) -> Path:
    """One training run: checkpoints, log and the finished model."""
    return RUNS / run / f"seed-{seed}"


def result_file(run: str, seed: int) -> Path:
    """The scores of one training run."""
    from train.evaluate import result_files

    return result_files.result_file(RESULTS, run, seed)


def prepared(dataset: str) -> PreparedDataset:
    """A data set that has been prepared.

    Raises:
        SightlineError: it has not.
    """
    return PreparedDataset.open(dataset_folder(dataset))


def feature_inputs(dataset: str, kind: Kind) -> FeatureInputs:
    """What a feature set of this kind over a data set is made of.

    Objects come from the stored cut-outs where these have them, else from their images.

    Raises:
        SightlineError: no such data set, a manifest is missing, or images that are needed.
    """
    from pipeline.extract.inputs import inputs_of
    from sightline.cache.feature_kind import feature_kind

    data, stored = prepared(dataset), cutouts_folder(dataset)
    if feature_kind(kind).row_of != "object":
        return inputs_of(kind, data)
    cutouts = stored if (stored / "set.json").is_file() else None
    return inputs_of(kind, data, phrases=grounding_folder(dataset), cutouts=cutouts)


def training_texts(params: Params) -> list[Path]:
    """The manifests of all training texts."""
    pairs, text = (
        PreparedDataset(dataset_folder(name)) for name in (params.graph.pairs, params.graph.text)
    )
    return [pairs.captions_manifest, text.sentences_manifest]


def run_spec(params: Params, run: str, seed: int) -> RunSpec:
    """The specification of training ``run`` with ``seed``, with explicit paths.

    Raises:
        SightlineError: parameters that the objective does not have or allow, pairs are needed but
            graph.pairs has none, or the run reads different features than its system.
    """
    from train.objectives import make_objective
    from train.run_spec import run_spec as make_spec

    config = params.run(run)
    objective = make_objective(config.objective, config.parameters)
    needs = objective.features
    _require_features_of_the_system(params, run, _feature_sets(objective))
    pairs, student = params.graph.pairs, params.student.name
    has_pairs = pairs in params.joined or params.dataset(pairs).has_pairs
    reads_sentences = objective.trains_on_text and config.train.text_stream
    of_objects = any(need.row_of == "object" for need in needs)
    return make_spec(
        run=run,
        student=params.student,
        train=config.train,
        objective=config.objective,
        parameters=config.parameters,
        seed=seed,
        tokens=tokens_folder(student),
        pairs=dataset_folder(pairs) if has_pairs else None,
        sentences=dataset_folder(params.graph.text) if reads_sentences else None,
        phrases=phrase_tokens_folder(pairs, student) if of_objects else None,
        features={need.name: features_folder(pairs, need.kind, need.encoder) for need in needs},
        dev=params.evaluation.dev,
        out=run_folder(run, seed),
        device=params.machine.device,
    )


def _require_features_of_the_system(params: Params, run: str, read: set[str]) -> None:
    """Check that a run reads only the features its dvc.yaml stage depends on, the system's."""
    from train.objectives import make_objective

    config = params.run(run)
    name, system = config.system, params.systems[config.system]
    declared = _feature_sets(make_objective(config.objective, system.parameters))
    if undeclared := sorted(read - declared):
        raise ParamsError(
            f"{FILE_NAME}: systems.{name}.runs.{run} reads {', '.join(undeclared)}, and its "
            f"system reads {', '.join(sorted(declared)) or 'no features'}. Other encoders or "
            "teachers are another system: give it an entry under `systems` and a train stage in "
            "dvc.yaml"
        )


def _feature_sets(objective: Objective) -> set[str]:
    return {f"{need.kind}/{need.encoder}" for need in objective.features}
