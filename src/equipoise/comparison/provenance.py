"""What is needed to reproduce an audit or a repair: run.json, the JSON of an audit, pages and cards record it."""

import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from equipoise import __version__
from equipoise.disk import sha256, sha256_of, without_folders
from equipoise.plugins import PLUGIN_FILES, PLUGIN_PACKAGES

if TYPE_CHECKING:
    from equipoise.data import Cohort

LIBRARIES = ("numpy", "pandas", "scipy", "torch")  # whose versions are recorded
STRICT = ConfigDict(extra="forbid", strict=True)  # for files: no unknown fields and no type conversion
# Of a name that is no UTF-8, what cannot be written to a file becomes "?".
Text = Annotated[str, BeforeValidator(lambda text: text.encode("utf-8", "replace").decode() if isinstance(text, str) else text)]


@checked(config=STRICT, kw_only=True, frozen=True)
class Provenance:
    """The information needed to reproduce an audit or a repair."""

    command: Text = ""
    model: Text = ""  # as the user named it
    seed: int = 0
    when: str = ""  # ISO date and time
    versions: dict[Text, Text] = field(default_factory=dict)
    hashes: dict[Text, Text] = field(default_factory=dict)  # file: SHA-256
    limits: list[Text] = field(default_factory=list)  # for the reader: rows left out, how images were prepared
    group_names: dict[Text, Text] = field(default_factory=dict)  # the user's words, for a page that is written again

    @classmethod
    def now(
        cls,
        *,
        arguments: Sequence[str] = (),
        model: str = "",
        seed: int = 0,
        files: Iterable[Path] = (),
        cohort: "Cohort | None" = None,
        limits: Sequence[str] = (),
        group_names: Mapping[str, str] | None = None,
    ) -> "Provenance":
        """The provenance of the current run: its command line without folders, versions, and checksums of its files and images.

        The checksum of a folder is that of the names and sizes of its files.
        """
        code = model.rpartition(":")[0]
        code_files = [Path(code)] if code.endswith(".py") else [Path(model)] if model.endswith(".pt2") else []
        hashes = {Path(path).name: sha256(source) for path, source in PLUGIN_FILES.items()}
        hashes |= dict(map(_path_and_checksum, (*files, *code_files)))
        if cohort is not None:
            from equipoise.data import Images  # late: scores have none

            if isinstance(cohort.source, Images):
                hashes["list of images"] = sha256("\n".join(map(str, cohort.ids)).encode())
                if (transform := cohort.source.transform) is not None and transform.path is not None:
                    hashes[transform.path.name] = transform.sha256
        used = {name: str(sys.modules[name].__version__) for name in LIBRARIES if hasattr(sys.modules.get(name), "__version__")}
        return cls(
            command=shlex.join(map(without_folders, arguments)),
            model=without_folders(model),
            seed=seed,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"equipoise": __version__, **used, **PLUGIN_PACKAGES, "python": platform.python_version()},
            hashes=hashes,
            limits=list(limits),
            group_names=dict(group_names or {}),
        )

    @classmethod
    def of(cls, plain: object) -> "Provenance | None":
        """The provenance in the JSON of an audit; None if it has none, or something else."""
        try:
            return TypeAdapter(cls).validate_python(plain, strict=False)
        except ValidationError:
            return None


def _path_and_checksum(path: Path) -> tuple[str, str]:
    if not path.is_dir():
        return path.name, sha256_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in files)
    return f"{path.name} (names and sizes of {len(files):,} files)", sha256(listing.encode())
