"""A table of scores of 40 patients, the options of its audit, and the table as a file."""

from pathlib import Path

import numpy as np
import pandas as pd

AUDIT = ["--label", "y", "--score", "p", "--group", "sex"]
SHORT = [*AUDIT, "--measure", "spd"]


def scores_frame(n: int = 80) -> pd.DataFrame:
    """Two rows per patient; both sexes and both labels in plenty."""
    rng = np.random.default_rng(0)
    half = n // 2
    frame = pd.DataFrame(
        {"id": np.arange(n), "pid": np.arange(n) // 2, "y": np.tile([0, 1, 1, 0], n)[:n], "sex": ["F"] * half + ["M"] * half}
    )
    return frame.assign(race=np.repeat(["a", "b", "a", "b"], n // 4), p=np.clip(rng.normal(0.4 + 0.2 * frame.y, 0.2), 0, 1).round(3))


def write_csv(path: Path | str, frame: pd.DataFrame | None = None) -> Path:
    (scores_frame() if frame is None else frame).to_csv(path, index=False)
    return Path(path)


def scores_with(**columns) -> pd.DataFrame:
    return scores_frame().assign(**columns)
