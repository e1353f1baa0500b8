"""Settings whose ``family`` says which class checks them and builds what they describe."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from sightline.parameter_errors import located, unknown
from sightline.registry import Registry


class FamilySettings(BaseModel):
    """The base of settings that come in families, to which other packages may add theirs.

    A direct subclass is one seam: it has a registry, `families`, of its own subclasses by name.
    Checking something against it checks it against the class of its family:
    ``EncoderConfig.model_validate({"family": "open_clip", …})`` is an `OpenClipConfig`.

    Attributes:
        family: name in the registry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    families: ClassVar[Registry]

    family: str

    @model_validator(mode="wrap")
    @classmethod
    def _class_of_the_family(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if "families" not in vars(cls) or isinstance(given, cls):
            return handler(given)
        if not isinstance(given, dict):
            raise ValueError(f"found {type(given).__name__}, expected a mapping with a `family`")
        chosen = cls.of_family(given.get("family"))
        try:
            return chosen.model_validate(given)
        except ValidationError as error:
            # said here: outside, nobody knows the keys of the family
            raise _mistakes([located(dict(each), chosen) for each in error.errors()]) from error

    @classmethod
    def of_family(cls, family: object) -> type[Self]:
        """The class of one family.

        Raises:
            ValidationError: there is no such family; the message names the nearest.
            SightlineError: another package has it and it cannot be imported, or it is something
                else.
        """
        families = cls.families
        if family is None:
            raise _mistakes([(("family",), f"is missing; there are {', '.join(families)}")])
        if family not in families:
            raise _mistakes([(("family",), unknown(str(family), families, families.what))])
        return families.subclass(str(family), cls)


def _mistakes(mistakes: list[tuple[tuple[Any, ...], str]]) -> ValidationError:
    """An error of pydantic with these messages, each at its place."""
    return ValidationError.from_exception_data(
        "settings",
        [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{message}", {"message": message}),
                loc=place,
                input=None,
            )
            for place, message in mistakes
        ],
    )
