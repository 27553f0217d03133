"""Runs the study `nih-pretrained` for a limited time and packs its rows into one archive, from which another run goes on.

    python experiments/nih-pretrained/nih_pretrained.py --root data --out runs/nih-pretrained --seconds 540 --archive rows.tar.gz
    python experiments/nih-pretrained/nih_pretrained.py --root data --out runs/nih-pretrained --archive rows.tar.gz   # the rest

Splits are done one after another, all data and methods of each, so that a run that is stopped has whole splits. It needs neither the
command line's packages nor those of the report: a machine with PyTorch, pandas, scikit-learn and pydantic will do.
"""

import argparse
import signal
import tarfile
import time
from pathlib import Path

import torch

from equipoise.studies import Event, narrow, open_study, read_plan, read_rows, run_study, with_options


class TimeIsUp(Exception):
    """The time that was given is over; what is finished is kept."""


def time_is_up(*_: object) -> None:
    """Ends the run from wherever it is; files are written whole or not at all."""
    raise TimeIsUp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds cxr-nih")
    parser.add_argument("--out", required=True, type=Path, help="folder of the study")
    parser.add_argument("--archive", required=True, type=Path, help="archive to write, and to go on from where it is there")
    parser.add_argument("--go-on", type=Path, help="archive of an earlier run, where it is another file")
    parser.add_argument("--seconds", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--size", type=int, default=224, help="pixels per side")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--data", help="only these, separated by commas")
    parser.add_argument("--methods", help="only these, separated by commas")
    given = parser.parse_args()
    start, told = time.perf_counter(), 0.0
    before = given.go_on if given.go_on and given.go_on.is_file() else given.archive
    if before.is_file():
        with tarfile.open(before) as archive:
            archive.extractall(given.out, filter="data")
    named = {name: value.split(",") if (value := getattr(given, name)) else None for name in ("data", "methods")}
    plan = with_options(narrow(read_plan("nih-pretrained"), splits=given.splits, **named), size=given.size)

    def progress(event: Event) -> None:
        nonlocal told
        seconds = time.perf_counter() - start
        if seconds - told > 15 or event.note:
            told = seconds
            print(f"{seconds:.0f} s: {event.done} of {event.total} tasks; {event.note}", flush=True)

    signal.signal(signal.SIGALRM, time_is_up)
    signal.setitimer(signal.ITIMER_REAL, given.seconds)
    try:
        run_study(plan, given.out, root=given.root, workers=given.workers, progress=progress)
    except TimeIsUp:
        print("time is up", flush=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        pack(given.out, given.archive)
    rows = read_rows(open_study(given.out))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    whole = (rows.groupby("seed").size() == len(plan.data) * len(plan.methods)).sum()
    print(
        f"{len(rows)} rows, {whole} whole splits of {plan.splits}, {time.perf_counter() - start:.0f} s, {device}, torch {torch.__version__}"
    )
    print(rows.groupby("method")["seconds"].mean().round(1).to_string())


def pack(folder: Path, archive: Path) -> None:
    """Writes the study without its networks into one archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f".{archive.name}")
    with tarfile.open(temporary, "w:gz") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in (".json", ".parquet", ".txt"):
                packed.add(path, path.relative_to(folder))
    temporary.replace(archive)


if __name__ == "__main__":
    main()
