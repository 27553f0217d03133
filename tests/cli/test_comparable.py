"""`--within` and `data.audit_label` as typed: terminal, JSON, page and bundle hold the same numbers; wrong columns are one clear error."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.command import ran

ROLES = ["--label", "mined", "--score", "p", "--group", "sex", "--reference", "M", "--patient", "pid", "--threshold", "0.5"]
BOTH = ["--within", "view", "--set", "data.audit_label=expert"]


def table(folder: Path, rows: int = 1200, **changed: object) -> Path:
    rng = np.random.default_rng(4)
    sex, view, truth = rng.choice(["F", "M"], rows), rng.choice(["AP", "PA"], rows), rng.random(rows) < 0.4
    mined = np.where(rng.random(rows) < 0.15, ~truth, truth).astype(int)
    p = (0.5 * truth + 0.6 * rng.random(rows) - 0.1 * (sex == "F")).clip(0, 1)
    expert = pd.Series(truth.astype(float)).where(rng.random(rows) < 0.5)
    frame = pd.DataFrame({"mined": mined, "p": p, "sex": sex, "view": view, "expert": expert, "pid": rng.integers(0, rows // 2, rows)})
    frame.assign(**changed).to_csv(folder / "films.csv", index=False)
    return folder / "films.csv"


def test_every_output_holds_the_same_numbers(tmp_path: Path):
    path = table(tmp_path)
    code, out, err = ran("audit", path, *ROLES, *BOTH, "--out", tmp_path / "audit.json", "--report", tmp_path / "audit.html")
    assert code == 0, err
    document, page = json.loads((tmp_path / "audit.json").read_text()), (tmp_path / "audit.html").read_text()
    frame = pd.read_csv(path, dtype={"pid": str})
    roles = {"label": "mined", "score": "p", "group": "sex", "reference": "M", "patient": "pid"}
    audit = eq.audit(eq.Scores.from_frame(frame, within="view", audit_label="expert", **roles), threshold=0.5)
    for name, columns in (("within", ["value", "low", "high"]), ("label_gaps", ["label", "adjudicated", "corrected"])):
        saved = pd.DataFrame(document[name])[columns]
        pd.testing.assert_frame_equal(saved, getattr(audit, name)[columns], check_dtype=False)
    for row in (audit.within.set_index("measure").loc["eod"], audit.label_gaps.set_index("measure").loc["eod"]):
        shown = f"{100 * row.get('value', row.get('corrected')):+.1f}"
        assert shown in out
        assert shown.replace("-", "\N{MINUS SIGN}") in page
    assert "Within view" in out


def test_a_case_file_and_a_repair_take_them_too(tmp_path: Path):
    table(tmp_path)
    data = 'table = "films.csv"\nlabel = "mined"\nscore = "p"\ngroup = "sex"\nreference = "M"\npatient = "pid"\n'
    text = f'[data]\n{data}within = "view"\naudit_label = "expert"\n[model]\nthreshold = 0.5\n[repair]\nmethod = "group-thresholds"\n'
    (tmp_path / "case.toml").write_text(text)
    assert len(eq.Case.load(tmp_path / "case.toml").audit().within)
    code, _, err = ran("debias", tmp_path / "case.toml", "--out", tmp_path / "out")
    assert code == 0, err
    saved = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert {row["within"] for row in saved["after"]["within"]} == {"view"}
    assert saved["before"]["label_gaps"][0]["adjudicated"] is not None


def test_the_screen_of_several_labels_has_them_for_each_label(tmp_path: Path):
    path = table(tmp_path)
    frame = pd.read_csv(path, dtype={"pid": str}).assign(other=lambda rows: rows["mined"].where(rows.index % 5 != 0, 1 - rows["mined"]))
    frame.assign(p_mined=frame["p"], p_other=frame["p"], expert2=frame["expert"]).to_csv(path, index=False)
    roles = ["--label", "mined", "--label", "other", "--score-prefix", "p_", "--group", "sex", "--reference", "M", "--patient", "pid"]
    columns = ["--within", "view", "--set", 'data.audit_label=["expert", "expert2"]', "--threshold", "0.5"]
    code, out, err = ran("audit", path, *roles, *columns, "--out", tmp_path / "audit.json")
    assert code == 0, err
    for label, audit in eq.read_audit(tmp_path / "audit.json").labels.items():
        largest = audit.gaps.loc[audit.gaps["value"].abs().idxmax()]
        for frame, name in ((audit.within, "value"), (audit.label_gaps, "adjudicated"), (audit.label_gaps, "corrected")):
            row = frame[frame["measure"] == largest["measure"]].iloc[0]
            assert f"{100 * row[name]:+.1f} [" in out, (label, name)


def test_without_them_nothing_is_added(tmp_path: Path):
    _, out, _ = ran("audit", table(tmp_path), *ROLES, "--out", tmp_path / "audit.json")
    assert {"within", "label_gaps", "label_groups"} & set(json.loads((tmp_path / "audit.json").read_text())) == set()
    assert "Within" not in out


@pytest.mark.parametrize(
    ("options", "changed", "fact"),
    [
        (["--within", "veiw"], {}, "Did you mean 'view'"),
        (["--within", "view"], {"view": "PA"}, "single group"),
        (["--within", "mined"], {}, "more than one role"),
        (["--set", "data.audit_label=expert"], {"expert": np.nan}, "no known value"),
        (["--set", "data.audit_label=mined"], {}, "more than one role"),
    ],
)
def test_a_wrong_column_is_one_clear_error(tmp_path: Path, options, changed, fact):
    code, _, err = ran("audit", table(tmp_path, **changed), *ROLES, *options)
    assert (code, fact in " ".join(err.split())) == (2, True), err


def test_a_table_that_is_read_in_batches_is_refused(tmp_path: Path):
    table(tmp_path)
    code, _, err = ran("audit", tmp_path, *ROLES, "--within", "view")
    assert (code, "added up where it is" in " ".join(err.split())) == (2, True)
