"""Image files with some content, for tests that make the content."""

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def file_of(content: bytes) -> Path:
    """A file without a suffix that holds this content."""
    path = _folder() / hashlib.sha256(content).hexdigest()
    path.write_bytes(content)
    return path


def files_of(contents: Iterable[bytes]) -> list[Path]:
    """A file for each content."""
    return [file_of(content) for content in contents]
