"""Tables: cells, rows, columns, encodings, separators, containers and bytes of a file of scores.

The oracle counts the file again from its text (`recount`). What changes the form only must give the audit of the sound file.
"""

import csv
import decimal
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.bytes import mutated
from fuzz.case import Case, Outcome
from fuzz.recount import Invalid, compared, recounted, rows_of

LABELS = ["", " ", "NA", "2", "-1", "0.5", "yes", "no", "1.0", "0.0", "True", "False", "true", "1e0", "nan", "inf", "1" * 400, "0x1", "1,0",
          "\u0661", "one", "null", "1 ", "+1", "1e400", "00", "01", "-0", "1_0", "None", "\x00"]  # fmt: skip
SCORES = ["", "NA", "1.5", "-0.1", "nan", "inf", "-inf", "1e-400", "1e400", "0,5", "50%", "0x0.8p0", "half", "1", "0", ".5", "5e-1",
          "+0.25",
          "0.5.1", "1.0000000000000002", "-0.0", "0." + "3" * 400, "null", "0.500000000000000000001", "0.49999999999999999", " 0.5", "True",
          "1e-5"]  # fmt: skip
GROUPS = ["", "NA", "null", "None", "nan", "f", "m", "F & M", "M ", " F", "007", "7", "1e5", "100000", "True", "True & False", "F,M", 'F"M',
          "=cmd()", "\u202eF", "<b>F</b>", "X" * 300, "2020-01-01", "0", "00", "0.0", "M\n", "\u00e9", "e\u0301", "-", "1.0"]  # fmt: skip
PATIENTS = ["", "007", "7", "7.0", "NA", "null", "1e5", "100000", "123456789012345678", "123456789012345679", "True", "01000", "1000",
            "2020-01-01", "\u00e9", "e\u0301", " 01000", "None", "nan", "0x10", "-0", "0"]  # fmt: skip
COLUMN_OF = {"label": "y", "score": "p", "group": "sex", "patient": "patient"}
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
AUDIT = ["--label", "y", "--score", "p", "--group", "sex", "--patient", "patient", "--set", "audit.min_patients=1", "--json"]


def case(base: Path, place: Path, rng: np.random.Generator) -> Case:
    content = (base / "scores.csv").read_bytes()
    kinds = (_cells, _bytes, _form, _rows, _header, _parquet, _parquet_bytes)
    kind = kinds[int(rng.choice(len(kinds), p=[0.3, 0.22, 0.14, 0.1, 0.08, 0.1, 0.06]))]
    return kind(content, place, rng)


def _case(what: str, path: Path, rows: list[dict[str, str]] | None, reason: str = "") -> Case:
    def judge(outcome: Outcome) -> str:
        return f"accepted, although {reason}" if rows is None else compared(outcome.out, rows)

    return Case(what, ["audit", path.name, *AUDIT], judge)


def _from_text(what: str, path: Path, content: bytes, delimiter: str = ",") -> Case:
    try:
        rows = rows_of(content, delimiter)
    except (Invalid, csv.Error, OSError, EOFError) as error:
        return _case(what, path, None, str(error))
    return _case(what, path, rows)


def _written(rows: list[dict[str, str]], delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL, end: str = "\n") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", errors="surrogatepass")


def _cells(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    """Some cells hold something else."""
    rows = rows_of(content)
    what = []
    for _ in range(int(rng.integers(1, 4))):
        column, values = [("y", LABELS), ("p", SCORES), ("sex", GROUPS), ("patient", PATIENTS)][int(rng.integers(4))]
        value = values[int(rng.integers(len(values)))]
        count = int(rng.choice([1, 1, 2, 5, len(rows)]))
        for at in rng.choice(len(rows), count, replace=False):
            rows[at] = {**rows[at], column: value}
        what.append(f"{column} = {value[:20]!r} in {count} rows")
    path = place / "mutated.csv"
    path.write_bytes(_written(rows))
    return _from_text(", ".join(what), path, path.read_bytes())


def _bytes(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    what, changed = mutated(content, rng)
    path = place / "mutated.csv"
    if rng.random() < 0.15:
        path, (what, changed) = place / "mutated.csv.gz", mutated(gzip.compress(content, mtime=0), rng)
        what = f"gzip, {what}"
    path.write_bytes(changed)
    try:
        return _from_text(what, path, changed)
    except Exception:  # zlib.error and the like: nobody can read it
        return _case(what, path, None, "it cannot be unzipped")


def _form(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    """Another form of the same table: the audit must be the same."""
    rows, what = rows_of(content), []
    if rng.random() < 0.6:
        rows = [rows[k] for k in rng.permutation(len(rows))]
        what.append("rows permuted")
    if rng.random() < 0.4:
        names = [list(rows[0])[k] for k in rng.permutation(len(rows[0]))]
        rows = [{name: row[name] for name in names} for row in rows]
        what.append("columns permuted")
    if rng.random() < 0.4:
        rows = [{**row, "id": f"\u00e9{k:04d}", "more, of it": f'"{k}"', "empty": ""} for k, row in enumerate(rows)]
        what.append("other columns added")
    delimiter = str(rng.choice(list(SEPARATORS)))
    quoting = int(rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = str(rng.choice(["\n", "\r\n"]))
    changed = _written(rows, delimiter, quoting, end)
    if rng.random() < 0.4:
        changed = b"\xef\xbb\xbf" + changed
        what.append("byte-order mark")
    if rng.random() < 0.3:
        changed = changed.rstrip() if rng.random() < 0.5 else changed + end.encode() * 2
        what.append("other end")
    path = place / "mutated.csv"
    if rng.random() < 0.3:
        path, changed = place / "mutated.csv.gz", gzip.compress(changed, mtime=0)
    path.write_bytes(changed)
    sound = rows_of(content)

    def judge(outcome: Outcome) -> str:
        return compared(outcome.out, sound)

    return Case(", ".join([*what, SEPARATORS[delimiter]]), ["audit", path.name, *AUDIT], judge)


def _rows(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    """Lines twice, removed, cut, merged, blank, or very many cells in one."""
    lines = content.decode().splitlines()
    at, kind = int(rng.integers(1, len(lines))), int(rng.integers(7))
    if kind == 0:
        lines[at:at] = [lines[at]] * int(rng.integers(1, 4))
    elif kind == 1:
        lines = lines[: int(rng.integers(1, len(lines)))]
    elif kind == 2:
        lines[at] = lines[at][: int(rng.integers(len(lines[at])))]
    elif kind == 3:
        lines[at] = lines[at] + lines[at - 1]
    elif kind == 4:
        lines[at:at] = [""] * int(rng.integers(1, 4))
    elif kind == 5:
        lines[at] += "," * int(rng.choice([1, 3, 500])) + str(rng.choice(["", "x"]))
    else:
        lines = [lines[0], *(f"{line},{k}" for k, line in enumerate(lines[1:]))]  # pandas would take the first column for an index
    path = place / "mutated.csv"
    path.write_text("\n".join(lines) + "\n")
    return _from_text(f"lines, kind {kind} at {at}", path, path.read_bytes())


def _header(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    names = content.decode().splitlines()[0].split(",")
    at, kind = int(rng.integers(len(names))), int(rng.integers(5))
    if kind == 0:
        names[at] = names[int(rng.integers(len(names)))]
    elif kind == 1:
        names[at] = str(rng.choice([names[at].upper(), f" {names[at]}", "", "y.1", "Unnamed: 0", f"{names[at]}\u200b", "p", "y"]))
    elif kind == 2:
        del names[at]
    elif kind == 3:
        names.insert(at, str(rng.choice(["", "y", "p", "z"])))
    else:
        names = [f'"{name}"' for name in names]
    path = place / "mutated.csv"
    path.write_bytes(",".join(names).encode() + b"\n" + content.split(b"\n", 1)[1])
    return _from_text(f"header: {','.join(names)}", path, path.read_bytes())


def _kinds() -> dict[str, dict[str, Any]]:
    """Types that columns of the Parquet file have instead of their own, by what is said of them; none where a cell is missing."""
    import pyarrow as pa

    missing: dict[str, dict[str, Any]] = {f"missing {what}": {} for what in COLUMN_OF}
    return {
        "as it is": {},
        "labels as bool": {"y": pa.bool_()},
        "labels as double": {"y": pa.float64()},
        "labels as decimal": {"y": pa.decimal128(3, 0)},
        "labels as text": {"y": pa.string()},
        "scores as float": {"p": pa.float32()},
        "scores as text": {"p": pa.string()},
        "patients as whole numbers": {"patient": pa.int64()},
        "groups as dictionary": {"sex": pa.dictionary(pa.int8(), pa.string())},
        "groups as large text": {"sex": pa.large_string()},
        "groups as bytes": {"sex": pa.binary()},
        "patients as lists": {"patient": pa.list_(pa.string())},
        "groups as structs": {"sex": pa.struct([("a", pa.string())])},
        "labels as timestamps": {"y": pa.timestamp("ms")},
        **missing,
    }


def _array(values: list[Any], kind: Any) -> Any:
    """A column of another type; None stands for its own."""
    import pyarrow as pa

    if kind is None:
        return pa.array(values)
    if pa.types.is_list(kind):
        return pa.array([[v] for v in values], kind)
    if pa.types.is_struct(kind):
        return pa.array([{"a": v} for v in values], kind)
    if pa.types.is_string(kind):
        return pa.array([str(v) for v in values], kind)
    if pa.types.is_decimal(kind):
        return pa.array([decimal.Decimal(v) for v in values], kind)
    if pa.types.is_integer(kind):
        return pa.array([int(v) for v in values], kind)
    if pa.types.is_binary(kind):
        return pa.array([v.encode() for v in values], kind)
    if pa.types.is_float32(kind):
        return pa.array(np.asarray(values, np.float32), kind)
    if pa.types.is_timestamp(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return pa.array(values).cast(pa.int64()).cast(kind)
    return pa.array(values, pa.string()).cast(kind)


def _as_read(value: str, kind: Any) -> str:
    """The text that a cell stands for once its column has another type."""
    import pyarrow as pa

    if kind is not None and pa.types.is_integer(kind):
        return str(int(value))
    return repr(float(np.float32(float(value)))) if kind is not None and pa.types.is_float32(kind) else value


def _without_a_role(rows: int, rng: np.random.Generator) -> Any:
    """A column that no audit needs, of a type that may be large in memory and small on disk."""
    import pyarrow as pa

    large = b"x" * int(rng.choice([1, 10_000, 5_000_000]))
    return [
        lambda: pa.array([large] * rows, pa.binary()).dictionary_encode() if len(large) < 5_000_000 else pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(rows, np.int32)), pa.array([large], pa.binary())),
        lambda: pa.array([[0] * int(rng.choice([1, 10_000]))] * rows, pa.list_(pa.int64())),
        lambda: pa.array([{"a": [{"b": None}]}] * rows, pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))])),
        lambda: pa.array([[("k", 1)]] * rows, pa.map_(pa.string(), pa.int8())),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.nulls(rows),
    ][int(rng.integers(6))]()  # fmt: skip


def _parquet(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    """The same table as Parquet, with other types, or with cells that hold something else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = rows_of(content)
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["y"], columns["p"] = [int(v) for v in columns["y"]], [float(v) for v in columns["p"]]
    kinds = _kinds()
    what = str(rng.choice(list(kinds)))
    invalid = what.split()[-1] in ("lists", "structs", "timestamps", "bytes")
    if what.startswith("missing"):
        name = COLUMN_OF[what.split()[1]]
        for at in rng.choice(len(rows), int(rng.integers(1, 4)), replace=False):
            columns[name][at] = None
            rows[at] = {**rows[at], name: ""}
    fields = kinds[what]
    table = pa.table({name: _array(values, fields.get(name)) for name, values in columns.items()})
    if rng.random() < 0.4:
        other = _without_a_role(len(rows), rng)
        what, table = f"{what}, a column without a role of {other.type}", table.append_column("other", other)
    rows = [{name: _as_read(value, fields.get(name)) for name, value in row.items()} for row in rows]
    path = place / "mutated.parquet"
    if rng.random() < 0.3:
        pandas = str(rng.choice(['{"index_columns": [', '{"index_columns": ["y"], "columns": []}', "{}", "null", "\x00"]))
        table = table.replace_schema_metadata({b"pandas": pandas.encode()})
        what += ", damaged pandas metadata"
    pq.write_table(table, path, compression=str(rng.choice(["none", "snappy", "zstd", "gzip"])), row_group_size=int(rng.choice([7, 1000])))
    if invalid:
        return Case(what, ["audit", path.name, *AUDIT], lambda outcome: compared(outcome.out, rows) and "accepted with other values")
    return _case(what, path, rows)


def _parquet_bytes(content: bytes, place: Path, rng: np.random.Generator) -> Case:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = rows_of(content)
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["y"], columns["p"] = [int(v) for v in columns["y"]], [float(v) for v in columns["p"]]
    path = place / "mutated.parquet"
    pq.write_table(pa.table(columns), path, compression=str(rng.choice(["none", "snappy", "gzip"])))
    what, changed = mutated(path.read_bytes(), rng)
    path.write_bytes(changed)
    try:
        table = pq.read_table(path)
        found = [{name: "" if row[name] is None else str(row[name]) for name in row} for row in table.to_pylist()]
        if any(name not in table.schema.names for name in ("patient", "sex", "y", "p")):
            raise Invalid("a column is missing")
        recounted(found)
    except Exception as error:  # whatever pyarrow raises for these bytes
        return _case(f"Parquet, {what}", path, None, str(error))
    return _case(f"Parquet, {what}", path, found)
