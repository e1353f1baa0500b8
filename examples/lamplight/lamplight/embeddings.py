"""An encoder behind an HTTP API, of texts and of images."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from lamplight.remote import Client
from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.encoder import ImageFileEncoder, TextEncoder, service_identity
from pipeline.extract.services import secret
from sightline.cache import EncoderRecord
from sightline.identity import Outside


class EmbeddingsConfig(EncoderConfig):
    """The service; its model's version is `weights`, pretrained:VERSION.

    Attributes:
        url: of the service.
        dim: values per row.
        concurrency: calls at a time.
    """

    needs_device = False

    url: Annotated[str, Outside("where it answers")]
    dim: int = Field(ge=1)
    concurrency: Annotated[int, Outside("how it is asked")] = Field(default=8, ge=1)

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        ask = self._asking("texts")

        def encode(texts: Sequence[str], length: int) -> Tensor:
            return ask(list(texts))

        def lengths(texts: Sequence[str]) -> list[int]:
            return [1] * len(texts)  # any texts may share a call

        return TextEncoder(
            self._identity, self.dim, {}, lengths, encode, concurrency=self.concurrency
        )

    def build_image(self, device: torch.device, precision: str) -> ImageFileEncoder:
        ask = self._asking("images")

        def encode(files: Sequence[bytes]) -> Tensor:
            return ask([base64.b64encode(file).decode() for file in files])

        return ImageFileEncoder(self._identity, self.dim, encode, self.concurrency)

    @property
    def _identity(self) -> EncoderRecord:
        return service_identity(f"embeddings/{self.model}", self.weights_spec.revision)

    def _asking(self, kind: str) -> Callable[[list[str]], Tensor]:
        client = Client(self.url, secret("LAMPLIGHT_KEY"))

        def ask(inputs: list[str]) -> Tensor:
            answer = client.post({"model": self.model, kind: inputs})
            return torch.tensor(TypeAdapter(list[list[float]]).validate_json(answer))

        return ask
