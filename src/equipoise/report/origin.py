"""The origin of an audit: its command line, versions and files, which its JSON and its pages record."""

import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from equipoise import __version__
from equipoise.data import sha256, sha256_of, without_folders

LIBRARIES = ("numpy", "pandas", "scipy", "torch")


@dataclass(frozen=True)
class Origin:
    """Everything that is needed to reproduce an audit."""

    command: str = ""
    when: str = ""  # ISO date and time
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # name: SHA-256
    inputs: Sequence[str] = ()  # preprocessing of images, and whether the scores were compared with known ones
    group_names: Mapping[str, str] = field(default_factory=dict)  # the user's words, for a page that is written again

    @classmethod
    def now(
        cls,
        *,
        arguments: Sequence[str] = (),
        files: Iterable[Path] = (),
        inputs: Sequence[str] = (),
        group_names: Mapping[str, str] | None = None,
    ) -> "Origin":
        """The origin of an audit that is made now: its command line without folders, versions, and the SHA-256 of its files.

        The SHA-256 of a folder is that of the names and sizes of its files.
        """
        versions = {name: str(sys.modules[name].__version__) for name in LIBRARIES if hasattr(sys.modules.get(name), "__version__")}
        return cls(
            command=shlex.join(map(without_folders, arguments)),
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"equipoise": __version__, **versions, "python": platform.python_version()},
            files=dict(map(_checksum, files)),
            inputs=tuple(inputs),
            group_names=dict(group_names or {}),
        )

    @classmethod
    def of(cls, plain: object) -> "Origin | None":
        """The origin in the JSON of an audit; None if it has none."""
        if not isinstance(plain, Mapping):
            return None

        def table(name: str) -> dict[str, str]:
            value = plain.get(name)
            return {str(k): str(v) for k, v in value.items()} if isinstance(value, Mapping) else {}

        inputs = plain.get("inputs")
        return cls(
            command=str(plain.get("command", "")),
            when=str(plain.get("when", "")),
            versions=table("versions"),
            files=table("files"),
            inputs=tuple(map(str, inputs)) if isinstance(inputs, (list, tuple)) else (),
            group_names=table("group_names"),
        )

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)


def _checksum(path: Path) -> tuple[str, str]:
    if path.is_file():
        return path.name, sha256_of(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listing = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in files)
    return f"{path.name} (names and sizes of {len(files):,} files)", sha256(listing.encode())
