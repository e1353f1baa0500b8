"""A frozen encoder: what it is called, what it takes, and the function that encodes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.cache.record import EncoderRecord
from sightline.plugins import expect, expect_array, expect_count, expect_seam, expect_valid, wrong

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.encoders.preprocessing import ImagePreprocessing

_ENCODE = "encode of what it makes"


class _EncodesImages(Protocol):
    def encode(self, images: Any) -> Tensor: ...


class _EncodesTexts(Protocol):
    def lengths(self, texts: Sequence[str]) -> list[int]: ...

    def encode(self, texts: Sequence[str], length: int) -> Tensor: ...


def checked_encoder(encoder: Any, builder: Callable[..., object], method: str) -> Any:
    """``encoder``, whose rows are checked too; refuse what ``builder`` should not have made.

    Args:
        method: its name: an `ImageEncoder` or `ImageFileEncoder` for ``build_image``, a
            `TextEncoder` for ``build_text``.

    Raises:
        SightlineError: names the package, what was found and what was expected.
    """
    if method == "build_text":
        expect(encoder, TextEncoder, builder, "it")
        expect_seam(encoder, _EncodesTexts, "preprocessing", of=builder)
    elif method == "build_image" and issubclass(type(encoder), ImageFileEncoder):
        expect_seam(encoder, _EncodesImages, "preprocessing", of=builder)
    elif method == "build_image":
        from pipeline.encoders.preprocessing import ImagePreprocessing

        expect(encoder, ImageEncoder, builder, "it")
        expect_valid(encoder.preprocessing, ImagePreprocessing, builder, "preprocessing")
        expect_seam(encoder, _EncodesImages, "configuration", of=builder)
    else:
        return encoder
    import torch

    encode, dim = encoder.encode, encoder.dim

    def checked(inputs: Sequence[Any] | Tensor, *length: int) -> Tensor:
        rows = expect(encode(inputs, *length), torch.Tensor, builder, _ENCODE)
        if rows.requires_grad:
            expected = "rows without a gradient (`torch.inference_mode`)"
            raise wrong(builder, _ENCODE, rows, expected)
        expect_array(rows, "float32", (len(inputs), dim), builder, _ENCODE)
        return rows

    if method == "build_image":
        return replace(encoder, encode=checked)

    def checked_lengths(texts: Sequence[str]) -> list[int]:
        lengths = encoder.lengths(texts)
        expect_valid(lengths, list[int], builder, "lengths of what it makes")
        expect_count(lengths, len(texts), builder, "lengths of what it makes", "texts")
        return lengths

    return replace(encoder, encode=checked, lengths=checked_lengths)


@dataclass(frozen=True)
class ImageEncoder:
    """A frozen model that maps images to vectors.

    A row depends only on its own image as long as the number of rows per call is fixed;
    floating-point sums change with that number, so it is part of an extraction's plan.

    Attributes:
        identity: the architecture and the weights (`pipeline.encoders.weights.identity_of`).
        dim: values per row.
        preprocessing: turns a decoded image into the model's input. Picklable, for worker
            processes.
        device: where `encode` takes images and leaves rows.
        encode: features of a batch, not normalised: float32 [n, 3, h, w] → float32 [n, dim]; a GPU
            need not be waited for.
        casts_weights: below fp32 the weights are cast once, instead of autocast; part of the
            fingerprint of such rows.
        options: how the model is run where that changes the last bits of a row, such as
            ``compiled``; part of the plan and of the record.
        configuration: what else determines a row, such as the digest of the model's
            configuration; JSON values, recorded with the preprocessing.
    """

    identity: EncoderRecord
    dim: int
    preprocessing: ImagePreprocessing
    device: torch.device
    encode: Callable[[Tensor], Tensor]
    casts_weights: bool = False
    options: tuple[str, ...] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageFileEncoder:
    """A model behind an API that maps image files to vectors.

    Attributes:
        identity: what determines its rows (`service_identity`).
        dim: values per row.
        encode: features of n files, the bytes of each, not normalised: float32 [n, dim] on the CPU;
            of objects, RGBA PNGs of their cut-outs. It may raise `sightline.errors.Transient`.
        concurrency: calls at a time, made in threads.
        preprocessing: what else determines a row; JSON values.
        casts_weights, options: as in `ImageEncoder`.
    """

    identity: EncoderRecord
    dim: int
    encode: Callable[[Sequence[bytes]], Tensor]
    concurrency: int = 1
    preprocessing: Mapping[str, object] = field(default_factory=dict)
    casts_weights: bool = False
    options: tuple[str, ...] = ()


def service_identity(name: str, version: str, **parameters: object) -> EncoderRecord:
    """What a model behind an API is known by; its digest is that of what is given here.

    Args:
        name: family and model, such as ``remote/embed-large``.
        version: of the model.
        parameters: whatever else determines its rows, such as a prompt; JSON values.
    """
    text = json.dumps([name, version, parameters], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    source = f"service:{version}"
    return EncoderRecord(name=name, source=source, revision=version, weights_sha256=digest)


@dataclass(frozen=True)
class TextEncoder:
    """A frozen model that maps texts to vectors. Rows are as independent as an `ImageEncoder`'s.

    Attributes:
        identity, dim, casts_weights, options: as in `ImageEncoder`.
        preprocessing: what determines the model's input (tokenizer digest, lengths, pooling), and
            the digest of its configuration; JSON values.
        lengths: the padded length, in tokens, at which each text is computed. It depends only on
            that text, so that texts of one length can share a batch.
        encode: features of a batch, every text padded to a length, not normalised: n texts, length
            → float32 [n, dim] on the CPU. ValueError: a text needs more tokens than that.
        count_cut: how many of some texts are longer than the model takes, and so cut; None: not
            known. `preprocessing` has the longest as ``max_length`` or ``context_length``.
        concurrency: of a model behind an API, the calls at a time, made in threads; `encode` may
            then raise `sightline.errors.Transient`. None: it computes here.
    """

    identity: EncoderRecord
    dim: int
    preprocessing: dict[str, object]
    lengths: Callable[[Sequence[str]], list[int]]
    encode: Callable[[Sequence[str], int], Tensor]
    casts_weights: bool = False
    options: tuple[str, ...] = ()
    count_cut: Callable[[Sequence[str]], int] | None = None
    concurrency: int | None = None

    def encode_all(self, texts: Sequence[str], batch_size: int = 64) -> NDArray[np.float32]:
        """Features of any number of texts, not normalised: [n, dim]."""
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of strings")
        rows = np.empty((len(texts), self.dim), dtype=np.float32)
        lengths = np.array(self.lengths(texts))
        for length in np.unique(lengths).tolist():
            same = np.flatnonzero(lengths == length)
            for start in range(0, len(same), batch_size):
                batch = same[start : start + batch_size]
                rows[batch] = self.encode([texts[int(i)] for i in batch], length).cpu().numpy()
        return rows
