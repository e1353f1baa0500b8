"""`sightline train OBJECTIVE`: a command for each objective, with the objective's own options."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.model_options import about, from_words, names_models, pairs_of, set_values, takes
from pipeline.cli.options import (
    DEVICE,
    JSON,
    OUT,
    of_dataset,
    option,
    print_json,
    seed_of,
    set_option,
)
from pipeline.cli.registry_commands import chosen_by_name
from pipeline.machine import OF_TRAINING, Machine
from sightline.cache.feature_kind import KINDS
from sightline.errors import BusyError
from train.objectives import OBJECTIVES, Objective, objective_class
from train.run_spec import OF_THE_MACHINE, RunSpec, StudentConfig, TrainConfig, run_spec


def options_of(objective: type[Objective]) -> list[str]:
    """The fields of an objective that are options of its command.

    Encoders, which are called as the kind of their features, follow from ``--features``; lists of
    models are given with ``--set``.
    """
    return [
        name
        for name, field in objective.model_fields.items()
        if name not in KINDS and not names_models(field.annotation)
    ]


def _command(name: str) -> Callable[..., None]:
    """The command that trains with the objective called ``name``."""
    objective = objective_class(name)

    @takes("words", objective, panel="Objective", only=options_of(objective), as_words=True)
    @takes(
        "student",
        StudentConfig,
        panel="Model",
        only=StudentConfig.model_fields.keys() - {"name"},
        names={"model": "student"},
    )
    @takes("machine", Machine, panel="Machine", only=OF_TRAINING)
    @takes(
        "settings",
        TrainConfig,
        panel="Training",
        panels=dict.fromkeys(OF_THE_MACHINE | {"chunk", "compile"}, "Machine"),
    )
    def train(
        student: StudentConfig,
        words: dict[str, Any],
        settings: TrainConfig,
        machine: Machine,
        out: OUT,
        data: Annotated[
            Path | None, of_dataset("Prepared data set of images and captions, or its URL.")
        ] = None,
        text: Annotated[
            Path | None, of_dataset("Prepared data set of sentences, trained on alone; or its URL.")
        ] = None,
        features: Annotated[
            list[str],
            option(
                "Data",
                "A feature set that it needs, or its URL; KIND-ENCODER=FOLDER where several fit; "
                "repeatable.",
                metavar="FOLDER",
            ),
        ] = [],  # noqa: B006
        tokens: Annotated[
            Path | None,
            option("Data", "Token set of every training text; default: made beside the data set."),
        ] = None,
        phrases: Annotated[
            Path | None, option("Data", "Phrase tokens, for an objective with objects.")
        ] = None,
        dev: Annotated[
            Path | None, option("Data", "Similarity TSV or SentEval folder for model selection.")
        ] = None,
        set_: Annotated[
            list[str],
            set_option(
                "Objective",
                "A parameter that has no option, such as image=clip, the encoder it reads",
            ),
        ] = [],  # noqa: B006
        seed: Annotated[
            int,
            option(
                "Training",
                "Seed for heads, dropout and row order.",
                parser=seed_of,
                metavar="<int>",
                show_default=True,
            ),
        ] = 0,
        device: DEVICE = "auto",
        dry_run: Annotated[
            bool, option("Output", "Say how many steps are done and to do.", "--dry-run")
        ] = False,
        as_json: JSON = False,
    ) -> None:
        _check_pairs(data)
        chosen, sets = _objective(objective, words, set_, features)
        token_folder = tokens or _tokens_beside(data, text, student)
        spec = run_spec(
            objective=name,
            parameters=chosen.model_dump(mode="json"),
            student=student,
            train=settings,
            tokens=token_folder,
            pairs=data,
            sentences=text,
            phrases=phrases,
            features=sets,
            dev=dev,
            seed=seed,
            device=device,
            out=out,
        )
        _run(spec, None if tokens else token_folder, machine.track, dry_run, as_json)

    kinds = [kind for kind in KINDS if kind in objective.model_fields]
    sets = "".join(f" --features features/{kind}" for kind in kinds)
    source = getattr(objective, "source", None)
    summary = f"Train with {source}." if isinstance(source, str) else about(objective)
    train.__doc__ = (
        f"{summary}\n\nIf killed, the same command resumes.\n\n"
        f"Example: sightline train {name} --data data/mine{sets} --student bert-base-uncased "
        f"--out runs/{name}"
    )
    return train


def _check_pairs(data: Path | None) -> None:
    from sightline.cache.prepared import PreparedDataset

    if data is not None and not PreparedDataset.open(data).has_pairs:
        raise typer.BadParameter(
            f"{data} has sentences and no images; give it as --text", param_hint="--data"
        )


def _objective(
    objective: type[Objective],
    words: Mapping[str, Any],
    set_: Sequence[str],
    features: Sequence[str],
) -> tuple[Objective, dict[str, Path]]:
    """The objective and its feature sets by name; encoders are called as their folders are."""
    from sightline.cache import FeatureSet
    from sightline.cache.remote_sets import local_set
    from sightline.files.places import is_url

    values = set_values(objective, set_)
    for name in values:
        if name in options_of(objective):
            flag = name.replace("_", "-")
            raise typer.BadParameter(f"{name} is an option: give --{flag}", param_hint="--set")
    folders = pairs_of([word for word in features if not _is_folder(word)], "--features")
    words_alone = [word for word in features if _is_folder(word)]
    alone = {word: FeatureSet.open(word).record.spec.kind for word in words_alone}
    for kind, encoder in map(_kind_and_encoder, folders):
        if kind in objective.model_fields:
            values.setdefault(kind, encoder)
    for word, kind in alone.items():
        if kind in objective.model_fields:
            folder = word if is_url(word) else Path(word).resolve().as_posix()
            values.setdefault(kind, folder.rpartition("/")[2].removeprefix(f"{kind}-"))
    try:
        chosen = from_words(objective, words, extra=values)
    except typer.BadParameter as error:
        if kinds := [kind for kind in objective.model_fields.keys() & KINDS if kind not in values]:
            error.message += f" (--features FOLDER, a set of {' or '.join(kinds)} features)"
        raise
    sets = {name: local_set(folder) for name, folder in folders.items()}
    for word, kind in alone.items():
        sets[_need_of(chosen, word, kind, sets)] = local_set(word)
    return chosen, sets


def _kind_and_encoder(name: str) -> tuple[str, str]:
    """The parts of ``image-clip``."""
    for kind in KINDS:
        if name.startswith(f"{kind}-"):
            return kind, name.removeprefix(f"{kind}-")
    raise typer.BadParameter(
        f"found {name!r}; a NAME is a kind and an encoder, such as image-clip=FOLDER",
        param_hint="--features",
    )


def _is_folder(word: str) -> bool:
    return "=" not in word or Path(word).is_dir()


def _need_of(chosen: Objective, folder: str, kind: str, sets: Mapping[str, Path]) -> str:
    """The one need that a set given without a name fits."""
    names = [need.name for need in chosen.features]
    fitting = [need.name for need in chosen.features if need.kind == kind and need.name not in sets]
    if len(fitting) == 1:
        return fitting[0]
    content = f"{folder} holds {kind} features"
    if fitting:
        fault = f"{content}, which {' and '.join(fitting)} need; write {fitting[0]}={folder}"
    elif kind in chosen.model_fields and any(need.kind == kind for need in chosen.features):
        fault = f"{content}, of which another set is given already"
    else:
        fault = f"{content}; {chosen.name} needs {', '.join(names) or 'no features'}"
    raise typer.BadParameter(fault, param_hint="--features")


def _tokens_beside(data: Path | None, text: Path | None, student: StudentConfig) -> Path:
    """Where the tokens of these data sets are kept if the user names no folder."""
    from sightline.cache.keys import key_of_file, key_of_text
    from sightline.models.sentence_transformers_folder import prompt_of

    folders = [folder.resolve() for folder in (data, text) if folder is not None] or [Path()]
    sets = "+".join(dict.fromkeys(folder.name for folder in folders))
    name = f"{sets}-{student.name}-{student.max_length}"
    file = Path(student.model) / "tokenizer.json"
    if file.is_file():  # two students may have folders of one name
        name += f"-{key_of_file(file).hex()[:8]}"
    if prompt := prompt_of(student.source, student.prompt):
        name += f"-{key_of_text(prompt).hex()[:8]}"
    return folders[0].parent / "tokens" / name


def _run(
    spec: RunSpec, to_make: Path | None, track: Sequence[str], dry_run: bool, as_json: bool
) -> None:
    from dataclasses import asdict

    from sightline.cache.record import FILE_NAME as SET
    from sightline.devices import is_first_process
    from train.train_run import steps_to_do, train_run

    if dry_run and to_make is not None and not (to_make / SET).is_file():
        print_json({"out": spec.out.as_posix(), "done": 0, "to_do": None}) if as_json else print(
            f"{spec.out}: unknown until the tokens are made, in {to_make}"
        )
        return
    if dry_run:
        left = steps_to_do(spec)
        print_json(asdict(left)) if as_json else print(left)
        return
    if to_make is not None:
        _make_tokens(spec, to_make)
    summary = train_run(spec, track=track)
    if not is_first_process():
        return
    print_json(summary.model_dump(mode="json", by_alias=True)) if as_json else print(summary)


def _make_tokens(spec: RunSpec, out: Path) -> None:
    """Tokenise the texts of a run in process 0, while others wait; what is there is kept."""
    from pipeline.tokenize_texts import texts_of, tokenize
    from train.distributed import joined

    data = [folder for folder in (spec.pairs, spec.sentences) if folder is not None]
    student = spec.student

    def make() -> int:
        texts, announced = texts_of(data), False
        while True:
            try:
                return tokenize(
                    texts, student.source, student.max_length, out, data, student.prompt
                )
            except BusyError as error:
                if not announced:
                    print(f"{spec.run}: waits for its tokens: {error}", file=sys.stderr)
                announced = True
                time.sleep(1.0)

    with joined(spec.device) as processes:
        processes.on_main(make)


app = chosen_by_name(OBJECTIVES, _command)


@app.callback()
def _group() -> None:
    """Fine-tune a student on cached features."""
