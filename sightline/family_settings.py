"""Settings whose ``family`` selects the class that validates them and builds what they describe."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from sightline.outside import short
from sightline.parameter_errors import located, unknown
from sightline.registry import Registry


class FamilySettings(BaseModel):
    """Base class of settings that come in families; other packages may add their own.

    A direct subclass is an extension point: its registry, `families`, has its subclasses by name.
    Validating something against it validates it against the class of its family:
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
            # reported here: outside, the keys of the family are unknown
            raise _mistakes([located(dict(each), chosen) for each in error.errors()]) from error

    def require_files(self) -> None:
        """Check that the files it names are there, before what would read them is imported.

        Raises:
            SightlineError: one is missing.
        """

    @classmethod
    def of_family(cls, family: object) -> type[Self]:
        """The class of one family.

        Raises:
            ValidationError: there is no such family; the message names the nearest.
            SightlineError: it belongs to another package and cannot be imported, or it is not
                such a class.
        """
        families = cls.families
        if family is None:
            raise _mistakes([(("family",), f"is missing; there are {', '.join(families)}")])
        if family not in families:
            name = family if isinstance(family, str) else short(family)
            raise _mistakes([(("family",), unknown(name, families, families.what))])
        return families.subclass(str(family), cls)


def _mistakes(mistakes: list[tuple[tuple[Any, ...], str]]) -> ValidationError:
    """A pydantic error with these messages, each at its location."""
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
