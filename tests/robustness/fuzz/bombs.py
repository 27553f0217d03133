"""Small files that hold, or ask for, far more memory or disk than they take: tables with columns y, p and sex, and ONNX graphs.

Each is written by a function (path) -> None in about a second, from libraries that any user has: no byte is forged.
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 1000
LONG = 2**20  # bytes of one value


def _columns(rows: int = ROWS) -> dict[str, Any]:
    import pyarrow as pa

    codes = pa.array((np.arange(rows) // 2 % 2).astype(np.int32))
    columns = {"y": np.arange(rows) % 2, "p": np.full(rows, 0.5)}
    return columns | {"sex": pa.DictionaryArray.from_arrays(codes, pa.array(["F", "M"]))}


def repeated_bytes(path: Path, column: str = "notes", kind: str = "binary") -> None:
    """One value of a megabyte in every row, which Parquet stores once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    values = pa.array([b"a" * LONG, b"b" * LONG]).cast(kind)
    codes = pa.array((np.arange(ROWS) // 2 % 2).astype(np.int32))
    table = pa.table(_columns() | {column: pa.DictionaryArray.from_arrays(codes, values)})
    pq.write_table(table, path, compression="zstd", store_schema=False)


def long_lists(path: Path, column: str = "notes") -> None:
    """Lists of 50 million zeros, which Parquet stores as their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, values = 100, 5_000_000
    offsets = pa.array(np.linspace(0, values, rows + 1).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(values, np.int64)))
    table = pa.table(_columns(rows) | {column: lists})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(table)


def endless_line(path: Path, beginning: bytes = b"y,p,sex\n1,0.5,F\n0,0.5,") -> None:
    """A CSV file, zipped, with a line of 640 MB."""
    path.write_bytes(gzip.compress(beginning) + 40 * gzip.compress(b"a" * 2**24))


def equal_rows(path: Path, rows: int = 200_000) -> None:
    """Rows that are almost all the same, which Parquet stores as their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    places = np.arange(rows) * 4 // rows
    sex = pa.DictionaryArray.from_arrays(pa.array((places % 2).astype(np.int32)), pa.array(["F", "M"]))
    pq.write_table(pa.table({"y": places // 2, "p": np.full(rows, 0.5), "sex": sex}), path, compression="zstd")


def large_tensor(path: Path, numbers: int = 2**34) -> None:
    """A graph of two inputs, a and b, that fills a tensor of 64 GiB."""
    from onnx import TensorProto, helper

    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [numbers])
    _write_graph(path, [helper.make_node("ConstantOfShape", ["shape"], ["large"])], [shape])


def sparse_weights(path: Path, numbers: int = 2**29) -> None:
    """A graph of two inputs with one weight out of many that are zero, and 2 GiB in memory."""
    from onnx import TensorProto, helper

    values, places = helper.make_tensor("large", TensorProto.FLOAT, [1], [1.0]), helper.make_tensor("at", TensorProto.INT64, [1], [0])
    _write_graph(path, [], [], [helper.make_sparse_tensor(values, places, [numbers])])


def _write_graph(path: Path, nodes: list[Any], weights: list[Any], sparse: list[Any] | None = None) -> None:
    """Writes the sum of two inputs and of the largest number in the tensor `large`."""
    from onnx import TensorProto, helper

    nodes = [
        *nodes,
        helper.make_node("ReduceMax", ["large"], ["most"], keepdims=0),
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
        helper.make_node("Add", ["most", "sum"], ["output"]),
    ]
    x, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", ["n", 2]), ("output", ["n"])))
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "g", [x], [output], [axes, *weights])
    graph.sparse_initializer.extend(sparse or ())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
