"""Installs packages into empty environments and measures their size and time; checks that Equipoise without torch repairs scores.

    python experiments/install/measure.py                       # every row of sizes.csv, in about five minutes
    python experiments/install/measure.py equipoise --check     # `make light`: the wheel without torch, its limits, and the page on scores

A size is that of all files below site-packages, apart from pip and setuptools, which an empty environment has. Times depend on the package
index: those in sizes.csv are of a mirror on the same machine, without a download.
"""

import argparse
import csv
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIELDS = ("install", "version", "packages", "megabytes", "seconds", "cpu_seconds")
LIMITS = {"megabytes": 400, "seconds": 60}  # of Equipoise without extras
OTHERS = ("fairlearn", "aif360", "oxonfair")
FOLLOW = f"""
import sys
sys.path.insert(0, {str(ROOT / "docs/_build")!r})
from pages import follow
from pathlib import Path
follow(Path({str(ROOT / "docs/how-to/repair-scores.md")!r}))
found = sorted({{"torch", "torchvision", "pyarrow"}} & set(sys.modules))
sys.exit(f"imported: {{found}}" if found else 0)
"""


def megabytes(environment: Path) -> tuple[float, int]:
    """The size of an environment's packages, and their number."""
    (place,) = environment.glob("lib/python3*/site-packages")
    own = [path for path in place.iterdir() if not path.name.startswith(("pip", "setuptools", "_distutils_hack", "distutils-"))]
    files = [file for path in own for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6, sum(path.suffix == ".dist-info" for path in own)


def install(what: str, target: str, place: Path) -> dict[str, object]:
    """One row: the environment in `place` after `pip install` of the target."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([place / "bin/pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", target], check=True)
    seconds, now = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    code = f"from importlib.metadata import version; print(version({what.partition('[')[0]!r}))"
    installed = subprocess.run([place / "bin/python", "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    size, count = megabytes(place)
    return dict(zip(FIELDS, (what, installed, count, round(size), round(seconds), round(cpu)), strict=True))


def main() -> None:
    """Measures what is named, or all; with `--check`, the limits and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["equipoise", "equipoise[parquet]", "equipoise[torch]", "equipoise[studies]", *OTHERS])
    parser.add_argument("--check", action="store_true", help="check the limits and the page on scores instead of writing rows")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        source = Path(folder, "source")  # a copy, since a build writes into its folder
        shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        subprocess.run([sys.executable, "-c", build, f"{folder}/dist"], cwd=source, check=True, stdout=subprocess.DEVNULL)
        wheel = Path(folder, "dist", f"equipoise-{version('equipoise')}-py3-none-any.whl")
        for k, what in enumerate(given.what):
            name, bracket, extras = what.partition("[")
            place = Path(folder, f"environment{k}")
            rows.append(install(what, f"{wheel}{bracket}{extras}" if name == "equipoise" else what, place))
            print(rows[-1], flush=True)
            if given.check:
                Path(folder, "empty").mkdir(exist_ok=True)
                subprocess.run([place / "bin/python", "-c", FOLLOW], cwd=Path(folder, "empty"), check=True)
    if given.check:
        if over := {name: rows[0][name] for name, limit in LIMITS.items() if int(str(rows[0][name])) > limit}:
            sys.exit(f"Equipoise without extras exceeds {LIMITS}: {over}")
        return
    with (Path(__file__).parent / "sizes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
