"""How a bundle makes inputs of new images: what run.json records of it, and the code of a transform, which runs only on request."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as checked

from equipoise.data import Transform, as_transform, preprocessing_of
from equipoise.errors import BadInput, Untrusted
from equipoise.methods import STRICT
from equipoise.models import Code, code_of, load_transform

Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@checked(config=STRICT, kw_only=True)
class ServedTransform:
    """The code of a transform: where it was, and its checksum; none of both for a callable that was given in Python."""

    named: str
    path: str | None
    sha256: Checksum | Literal[""]


@checked(config=STRICT, kw_only=True)
class ServedImages:
    """The preprocessing in run.json: the options of `Images.open`."""

    channels: Positive | None
    resize: Positive | Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    crop: Positive | str | None = None
    interpolation: str | None = None
    centre: Literal["rounded", "floor"] | None = None
    mean: list[Finite] = Field(default_factory=list)
    std: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=list)
    preset: str | None = None
    transform: ServedTransform | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Any:
        said = {name: value for name, value in vars(self).items() if name != "transform" and value not in (None, [])}
        if self.transform is not None:
            if set(said) - {"channels"}:
                raise ValueError(f"has a `transform` and {', '.join(sorted(set(said) - {'channels'}))} as well")
        elif self.interpolation is None:
            raise ValueError("needs `interpolation`, or a `transform`")
        else:
            preprocessing_of(**said)  # says what does not go together
        return self


def transform_to_serve(
    how: Mapping[str, Any] | None,
    folder: Path,
    given: str | Callable[[Any], Any] | None,
    trust: bool,
    running: Callable[[Code], None] | None,
) -> Transform | None:
    """The transform that makes inputs of new images, or None where options do; an error where it is not the one of the repair.

    Its code runs only if it is named (`given`) or trusted, and only with the checksum of the repair: it decides what the network sees.
    """
    recorded = (how or {}).get("transform")
    if recorded is None:
        if given is not None:
            raise BadInput(f"the network in {folder} takes images without a transform. Omit --transform (transform=).")
        return None
    if given is not None and not isinstance(given, str):
        return as_transform(given)
    if recorded["path"] is None:
        raise BadInput(
            f"{folder} was saved from Python with the transform {recorded['named']}, whose code it does not name. Give it: transform="
        )
    name = str(recorded["named"]).rpartition(":")[2]
    if given is None and not Path(recorded["path"]).is_file():
        raise BadInput(
            f"the code of the transform, {recorded['path']}, no longer exists. Name its present place: --transform file.py:{name}"
        )
    named = given or f"{recorded['path']}:{name}"
    code = code_of(named, here=given is not None)
    if code is None or code.sha256 != recorded["sha256"]:
        raise Untrusted(
            f"the transform has changed since the repair: {code}. Its SHA-256 is {code.sha256 if code else ''}, and run.json has "
            f"{recorded['sha256']}. Restore the file of the repair, or repair again with the new one."
        )
    if given is None and not trust:
        raise Untrusted(
            f"{folder} needs code to prepare its images, which would run with all your rights: {code}. Its SHA-256 is {code.sha256}, the "
            f"same as in the repair. Read it, then run it with --trust (Python: trust=True), or name it yourself: --transform {named}"
        )
    if given is None and running is not None:
        running(code)
    return load_transform(named, code)


def opening(how: Mapping[str, Any], transform: Transform | None) -> dict[str, Any]:
    """The options of `Images.open` that run.json records."""
    return {name: value for name, value in how.items() if name != "transform" and value not in (None, [])} | {"transform": transform}
