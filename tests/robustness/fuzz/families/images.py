"""Images: names in the table that lead elsewhere, other formats, damaged files and images of gigabytes.

The oracle knows the pixels of every sound image and computes each score with NumPy. A row may have the score of its own image, or none.
"""

import csv
import io
import shutil
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file

from fuzz.base import MEAN, NEW, SIDE, STD, image_names, serving
from fuzz.bytes import mutated
from fuzz.case import Case, Outcome

LOSSLESS = {"bmp": "BMP", "tif": "TIFF", "pgm": "PPM", "png": "PNG", "webp": "WEBP"}


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    kind = rng.random()
    if kind < 0.45:
        return _names(base, place, rng)
    return _contents(base, place, rng)


def scores(base: Path, pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The scores of images (n, SIDE, SIDE) under the repaired network, by plain arithmetic."""
    state = load_file(base / "bundles" / "images" / "repaired.safetensors")
    x = ((pixels.reshape(len(pixels), -1).astype(np.float32) / 255) - MEAN) / STD
    logit = x.astype(np.float64) @ state["1.weight"][0].astype(np.float64) + float(state["1.bias"][0])
    return 1 / (1 + np.exp(-logit))


def table(base: Path, place: Path, names: list[str], kind: str = "xrays") -> Path:
    """A table of new patients with these names of images."""
    lines = list(csv.reader(io.StringIO((base / f"{kind}-new.csv").read_text())))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    writer.writerows([*line[:-1], name] for line, name in zip(lines[1:], names, strict=True))
    path = place / "named.csv"
    path.write_bytes(text.getvalue().encode("utf-8", errors="surrogatepass"))
    return path


def judged(outcome: Outcome, names: list[str], expected: dict[str, float | None], allowed_missing: bool) -> str:
    """Compares decisions with the score of each name; None stands for any score, and a name that is not there must not have one."""
    rows = list(csv.DictReader(io.StringIO(outcome.out, newline="")))
    if len(rows) != len(names) and not (allowed_missing and len(rows) < len(names)):
        return f"{len(rows)} decisions for {len(names)} rows"
    told = [(f"{1000 + k // 2:05d}", name) for k, name in enumerate(names)]
    for row in rows:
        name = row["image"]
        if (row["patient"], name) not in told:
            return f"a decision for patient {row['patient']!r} and image {name!r}, who are not in the table"
        if name not in expected:
            return f"a score for the image {name!r}, which does not exist or cannot be read"
        score = expected[name]
        if score is not None and abs(float(row["score"]) - score) > 1e-4:
            return f"the score of {name!r} is {row['score']}; its own image gives {score:.6f}"
    return ""


def _names(base: Path, place: Path, rng: np.random.Generator) -> Case:
    known, pixels = image_names(), np.load(base / "pixels.npy")
    own = scores(base, pixels)
    named = {name: float(score) for name, score in zip(known, own, strict=True)}
    for name in known:  # a bare name may leave out its folder and its suffix where that is clear
        bare = Path(name).name
        if [Path(other).name for other in known].count(bare) == 1:
            named[bare] = named[name]
        if [Path(other).stem for other in known].count(Path(name).stem) == 1:
            named[Path(name).stem] = named[name]
        named[f"./{name}"] = named[name]
    names = list(known[:NEW])
    what = []
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(NEW))
        name = names[at]
        variants = [
            f"patA/{Path(name).name}", f"patC/{Path(name).name}", f"/{name}", f"../{name}", f"xrays/{name}", name.upper(), name[:-4],
            f"0{name}",
            name.lstrip("0"), f"{name} ", f" {name}", f"{name}.png", name.replace(".png", ".jpg"), "view1.png", "view2.png", "view1",
            "1.2.840.5", "1.2.840.5.1", "12", "00012", "012.png", "", "patA", ".", "..", "patB/../patA/view1.png",
            str(base / "xrays" / name),
            str(base / "xrays" / "12.png"), "../../etc/passwd", "x" * 300, "a\x00b", "\u202e.png", names[int(rng.integers(NEW))],
            "nan", "NA", "12.0",
            "*.png", "scan0?.png", "patB\\view1.png", "CON", "scan05.png", "patB//view1.png", "patB/./view1.png", "\ud800.png",
        ]  # fmt: skip
        names[at] = variants[int(rng.integers(len(variants)))]
        what.append(f"{name} as {names[at][:40]!r}")
    skip = rng.random() < 0.3
    for name in names:  # another spelling of a path below the folder is that file
        try:
            path = (base / "xrays" / name).resolve()
            if name and "\\" not in name and path.is_file() and path.is_relative_to((base / "xrays").resolve()):
                named.setdefault(name, named[str(path.relative_to((base / "xrays").resolve()))])
        except (OSError, ValueError):
            continue
    file = table(base, place, names)
    command = [*serving(base, base / "bundles" / "images", "images", file), *(["--set", "images.skip_broken=true"] if skip else [])]
    return Case(", ".join(what), command, lambda outcome: judged(outcome, names, named, skip))


def _contents(base: Path, place: Path, rng: np.random.Generator) -> Case:
    known, pixels = image_names()[:NEW], np.load(base / "pixels.npy")[:NEW]
    own = scores(base, pixels)
    expected: dict[str, float | None] = {name: float(score) for name, score in zip(known, own, strict=True)}
    root = place / "xrays"
    shutil.copytree(base / "xrays", root)
    at = int(rng.integers(NEW))
    path, kind = root / known[at], rng.random()
    if kind < 0.2:
        suffix = str(rng.choice(list(LOSSLESS)))
        out = io.BytesIO()
        Image.fromarray(pixels[at]).save(out, LOSSLESS[suffix], **({"lossless": True} if suffix == "webp" else {}))
        path.write_bytes(out.getvalue())
        what = f"{suffix} in a .png"
    elif kind < 0.3:
        what, content = _bomb(rng)
        path.write_bytes(content)
        del expected[known[at]]
    else:
        out = io.BytesIO()
        form = str(rng.choice(["PNG", "PNG", "JPEG", "TIFF", "GIF", "BMP", "JPEG2000"]))
        Image.fromarray(pixels[at]).save(out, form)
        what, content = mutated(out.getvalue(), rng)
        what = f"{form}, {what}"
        path.write_bytes(content)
        if _readable(content):
            expected[known[at]] = _decoded(base, content)
        else:
            del expected[known[at]]
    skip = rng.random() < 0.4
    command = [*serving(base, base / "bundles" / "images", "images", images=root), *(["--set", "images.skip_broken=true"] if skip else [])]
    return Case(what, command, lambda outcome: judged(outcome, known, expected, skip))


def _readable(content: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(content)) as image:
                image.load()
        except Exception:  # whatever a decoder raises for these bytes
            return False
    return True


def _decoded(base: Path, content: bytes) -> float | None:
    """The score of a readable image; None where its shape or kind asks for more than reading it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(content)) as image:
            if image.size != (SIDE, SIDE) or image.mode != "L" or image.getexif() or image.has_transparency_data:
                return None
            return float(scores(base, np.asarray(image)[None])[0])


def _bomb(rng: np.random.Generator) -> tuple[str, bytes]:
    """A PNG that says, or truly is, far larger than its file."""
    side = int(rng.choice([20_000, 60_000, 2**31 - 1]))
    whole = side == 20_000
    rows = zlib.compress(bytes(side * 40), 9) if whole else zlib.compress(b"\x00" * 1000, 9)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return f"a PNG of {side} pixels a side", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
