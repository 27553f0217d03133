"""Without torch, pillow and pyarrow: tables of scores are audited, repaired and served; the rest names the pip command.

The packages are blocked in a process of its own. `make light` installs the wheel into an empty environment and measures it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.errors import EXTRAS, MissingExtra, needing

ROOT = Path(__file__).parents[1]
BLOCKED = f"""
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(EXTRAS)}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {str(ROOT / "docs/_build")!r})
"""


def without_extras(code: str, folder: Path) -> str:
    """What code prints in a process without the packages of the extras."""
    done = subprocess.run([sys.executable, "-c", BLOCKED + code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_page_on_scores_and_an_estimator_run_without_the_extras(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from pages import follow
follow(Path({str(ROOT / "docs/how-to/repair-scores.md")!r}))
import numpy as np, pandas as pd
from sklearn.linear_model import LogisticRegression
import equipoise as eq
from equipoise.sklearn import FairClassifier
rng = np.random.default_rng(0)
frame = pd.DataFrame({{"a": rng.normal(size=400), "sex": rng.choice(["F", "M"], 400)}})
y = (frame["a"] + rng.normal(size=400) > 0).astype(int)
fair = FairClassifier(LogisticRegression(), group="sex", method="group-thresholds").fit(frame, y)
import skops.io, warnings
from equipoise.cli import run
frame["sick"], frame["patient"] = np.where(y, "yes", "no"), range(400)
skops.io.dump(LogisticRegression().fit(frame[["a"]], frame["sick"]), "model.skops")
frame.to_csv("visits.csv", index=False)
codes = [run(line.split()) for line in (
    "init visits.csv --model model.skops", "audit case.toml", "debias case.toml --out mine", "apply mine visits.csv --out d.csv",
    "debias case.toml --method bias-score --out other",
)]
print(codes, Path("mine/report.html").is_file())
print(len(fair.predict(frame[["a", "sex"]])))
"""
    *_, codes, predicted = without_extras(code, tmp_path).splitlines()
    assert codes == "[0, 0, 0, 0, 0] True"
    assert predicted == "400"


def test_what_needs_an_extra_names_the_pip_command(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,p,sex\n" + "1,0.9,F\n0,0.2,F\n1,0.4,M\n0,0.3,M\n" * 20)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    code = """
import contextlib, io
from equipoise.cli import run
columns = ["--label", "y", "--group", "sex"]
told = {}
for what, line in {
    "network": ["audit", "t.csv", *columns, "--model", "net.py:build"],
    "images": ["debias", "t.csv", *columns, "--model", "resnet-18", "--images", "."],
    "parquet": ["audit", "t.parquet", *columns, "--score", "p"],
    "history": ["audit", "t.csv", *columns, "--score", "p", "--append", "h.parquet", "--date", "2026"],
    "folder": ["audit", ".", *columns, "--score", "p"],
    "demo": ["demo", "--out", "demo"],
}.items():
    with contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(line)
    told[what] = [code, " ".join(err.getvalue().split())]
import equipoise as eq
for what, use in {"train": lambda: eq.train, "open": lambda: eq.Cohort.from_images}.items():
    try:
        use()
    except ImportError as error:
        told[what] = [2, str(error)]
print(json.dumps(told))
"""
    told = json.loads(without_extras(code, tmp_path).splitlines()[-1])
    extras = {"network": "torch", "images": "torch", "parquet": "parquet", "history": "parquet", "folder": "tables", "train": "torch"}
    for what, (exit_code, text) in told.items():
        assert exit_code == 2, (what, text)
        assert f"pip install 'equipoise[{extras.get(what, 'studies')}]'" in text, (what, text)
    assert told.keys() == {*extras, "demo"}  # classes of the core import


def test_another_missing_module_is_not_taken_for_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, needing("a network"):
        raise ModuleNotFoundError(name="torchaudio")
    assert not isinstance(caught.value, MissingExtra)
