"""A grounder behind an HTTP API, which takes the file of an image and its captions."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from http.client import HTTPException
from typing import Annotated
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from pydantic import BaseModel, Field, SecretStr, TypeAdapter

from pipeline.extract.decode import EncodedImage
from pipeline.extract.services import secret
from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded, GroundingError
from pipeline.grounding.settings import GrounderSettings
from pipeline.grounding.spans import SpanFinder
from sightline.errors import SightlineError, Transient
from sightline.identity import Outside

PROMPT = "Name every object of each caption that is visible, and its box in pixels."


class RemoteSettings(GrounderSettings):
    """The service and its model.

    Attributes:
        url: of the service.
        model: name and version of the model there.
        concurrency: calls at a time.
        timeout: seconds that an answer may take.
    """

    needs_device = False

    url: Annotated[str, Outside("where it answers")]
    model: str
    concurrency: Annotated[int, Outside("how it is asked")] = Field(default=8, ge=1)
    timeout: Annotated[float, Outside("how it is asked")] = Field(default=60, gt=0)

    def build(self, device: torch.device, precision: str) -> RemoteGrounder:
        client = Client(self.url, secret("LAMPLIGHT_KEY"), self.timeout)
        return RemoteGrounder(self.model, self.concurrency, client)


class Box(BaseModel):
    """What the service finds of a phrase."""

    phrase: str
    box: tuple[float, float, float, float]
    score: float = Field(ge=0, le=1)


class Client:
    """Asks a service, whose key goes into a header."""

    def __init__(self, url: str, key: SecretStr, timeout: float = 60) -> None:
        self._url, self._key, self._timeout = url, key, timeout

    def post(self, body: dict[str, object]) -> bytes:
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        request = Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=self._timeout) as response:
                return response.read()
        except HTTPError as error:
            found = f"{self._url}: HTTP status {error.code}"
            if error.code not in (429, 500, 502, 503, 504):
                raise SightlineError(f"{found}; check the key") from None
            wait = error.headers.get("Retry-After", "")
            seconds = float(wait) if wait.replace(".", "", 1).isdecimal() else None
            raise Transient(found, seconds) from None
        except (OSError, HTTPException) as error:
            raise Transient(f"{self._url}: {type(error).__name__}") from None


class RemoteGrounder:
    """The phrases and boxes that a service names."""

    name = "remote"
    takes_files = True

    def __init__(self, model: str, concurrency: int, client: Client) -> None:
        self.concurrency = concurrency
        self._model, self._client = model, client

    def describe(self) -> dict[str, object]:
        return {"family": self.name, "model": self._model, "prompt": PROMPT}

    def ground(self, images: Sequence[EncodedImage], captions: Sequence[Caption]) -> list[Answer]:
        texts = [caption.text for caption in captions]  # all are of one image
        image = base64.b64encode(images[0].data).decode()
        body = {"model": self._model, "prompt": PROMPT, "image": image, "captions": texts}
        try:
            boxes = TypeAdapter(list[list[Box]]).validate_json(self._client.post(body))
            return [self._answer(*each) for each in zip(texts, boxes, strict=True)]
        except ValueError as error:  # also pydantic's
            raise GroundingError(captions[0].image_key, "bad_answer", str(error)) from error

    def _answer(self, caption: str, boxes: Sequence[Box]) -> Answer:
        finder, found, dropped = SpanFinder(caption), list[Grounded](), list[Dropped]()
        for each in boxes:
            span = finder.find(each.phrase)
            if span is None:
                dropped.append(Dropped(each.phrase, "not_in_caption", finder.reason(each.phrase)))
                continue
            box, score = torch.tensor([each.box]), torch.tensor([each.score])
            found.append(Grounded(caption[slice(*span)], *span, box, score))
        return found, dropped
