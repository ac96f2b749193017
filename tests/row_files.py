"""Files for all row sources, with the same numbers."""

import pathlib

import numpy as np

NAMES = ("parquet", "arrow", "csv", "huggingface", "array_record")
NUM_ROWS = 1000


def columns(num_rows: int = NUM_ROWS, first: int = 0) -> dict[str, np.ndarray]:
    """Return columns of several dtypes, whose `id` counts from `first`."""
    ids = np.arange(first, first + num_rows)
    return {
        "id": ids,
        "x": (ids / 7).astype(np.float64),
        "label": ids % 10,
        "name": np.array([f"row {i}, é" for i in ids], object),
    }


def write(
    name: str,
    folder: pathlib.Path,
    num_rows: int = NUM_ROWS,
    *,
    num_files: int = 2,
    changes: dict[str, object] | None = None,
) -> str:
    """Write files of one source; return the `input_path` that matches them.

    Args:
        name: The name of the source.
        folder: Where to write.
        num_rows: The number of rows of all files.
        num_files: The number of files.
        changes: Columns to add or to replace, by name; None removes a column.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = {**columns(num_rows), **(changes or {})}
    table = {key: value for key, value in table.items() if value is not None}
    for number in range(num_files):
        rows = slice(number * num_rows // num_files, (number + 1) * num_rows // num_files)
        part = {key: value[rows] for key, value in table.items()}
        _WRITERS[name](part, str(folder / f"{number}.{name}"))
    return str(folder / f"*.{name}")


def _write_parquet(part, path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(_lists(part)), path, row_group_size=64)


def _write_arrow(part, path):
    import pyarrow as pa

    table = pa.table(_lists(part))
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=64)


def _write_csv(part, path):
    import pyarrow as pa
    from pyarrow import csv

    csv.write_csv(pa.table(_lists(part)), path)


def _write_hugging_face(part, path):
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(_lists(part)).save_to_disk(path)


def _write_array_record(part, path):
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for number in part["id"]:
        writer.write(str(number).encode())
    writer.close()


def _lists(part):
    return {key: list(v) if np.ndim(v) > 1 else v for key, v in part.items()}


_WRITERS = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "huggingface": _write_hugging_face,
    "array_record": _write_array_record,
}
