"""Where a result comes from: the command, versions, seed and checksums of the files, as every output states it."""

import platform
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from equipoise import __version__
from equipoise.data import Cohort, sha256, sha256_of, without_folders

STRICT = ConfigDict(extra="forbid", strict=True)  # for files: no unknown fields and no type conversion
# Of a name that is no UTF-8, what cannot be written to a file becomes "?".
Text = Annotated[str, BeforeValidator(lambda text: text.encode("utf-8", "replace").decode() if isinstance(text, str) else text)]


@dataclass(config=STRICT, kw_only=True, frozen=True)
class Provenance:
    """The information needed to reproduce a repair."""

    command: Text = ""
    model: Text = ""  # as the user named it
    seed: int = 0
    when: str = ""  # ISO date and time
    versions: dict[Text, Text] = field(default_factory=dict)
    hashes: dict[Text, Text] = field(default_factory=dict)  # file: sha256
    limits: list[Text] = field(default_factory=list)  # caveats for the reader, such as rows left out

    @classmethod
    def now(
        cls,
        *,
        arguments: Sequence[str] = (),
        model: str = "",
        seed: int = 0,
        files: Iterable[Path] = (),
        cohort: Cohort | None = None,
        limits: Sequence[str] = (),
    ) -> "Provenance":
        """The provenance of the current run: its command line without folders, versions, and checksums of its files and images."""
        code = model.rpartition(":")[0]
        code_files = [Path(code)] if code.endswith(".py") else [Path(model)] if model.endswith(".pt2") else []
        hashes = {path.name: sha256_of(path) for path in (*files, *code_files)}
        if cohort is not None:
            from equipoise.data import Images  # late: scores have none

            if isinstance(cohort.source, Images):
                hashes["list of images"] = sha256("\n".join(map(str, cohort.ids)).encode())
                if (transform := cohort.source.transform) is not None and transform.path is not None:
                    hashes[transform.path.name] = transform.sha256
        versions = {"equipoise": __version__, "python": platform.python_version()}
        for library in ("torch", "numpy", "pandas"):
            with suppress(PackageNotFoundError):
                versions[library] = version(library)
        command, when = shlex.join(map(without_folders, arguments)), datetime.now(UTC).isoformat(timespec="seconds")
        named = without_folders(model)
        return cls(command=command, model=named, seed=seed, when=when, versions=versions, hashes=hashes, limits=list(limits))
