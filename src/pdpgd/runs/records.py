"""Records of a run: one row per sample and norm, the traces of the attacks, and their files (Parquet and npz)."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdpgd.errors import need

Columns = Mapping[str, NDArray[Any]]

INITIALLY_WRONG = "initially wrong"
FOOLED = "fooled"
NOT_FOOLED = "not fooled"
UNVERIFIED = "unverified"
STATUSES = (INITIALLY_WRONG, FOOLED, NOT_FOOLED, UNVERIFIED)

MEASURED = ("linf", "l2", "l1", "l0")
"""Norms in which every adversarial example is measured, whichever norm was attacked."""


@dataclass(frozen=True)
class Column:
    """A column of the records."""

    name: str
    dtype: Any
    about: str
    """Description. It is stored in the files, so that another wording would change their bytes."""
    default: Any = None
    """Value in files that are older than the column; None if every file has it."""


COLUMNS = (
    Column("sample", np.int64, "place in the data set"),
    Column("label", np.int64, "its class"),
    Column("norm", str, "in which the perturbation was to be small"),
    Column("status", str, f"{', '.join(STATUSES)}"),
    Column("distance", np.float64, "smallest verified size in this norm from any attack of the run; inf: none"),
    Column("source", str, "the attack it is from: of this norm, of another one, or a cheap one"),
    Column("prediction", np.int64, "the class the model gives to the point; -1: no point"),
    Column(
        "margin", np.float64, "of the point: how far behind the label's logit is, below 0; of the input, if no point"
    ),
    Column("fragile", np.bool_, "whether rounding may decide on which side of the boundary the point is"),
    *(Column(f"size_{norm}", np.float64, f"of the point in {norm}") for norm in MEASURED),
    Column("verdict", str, "of the referee on the point of this norm's own attack"),
    Column("own_distance", np.float64, "size of that point, if it was verified and is not another norm's"),
    Column("cheap_distance", np.float64, "smallest size that a cheap attack found"),
    Column("late_gain", np.float64, "share of the own distance lost in the last fifth of the iterations; nan: unknown"),
    Column("distance_8bit", np.float64, "smallest verified size on the grid of 1/255; inf: none"),
    Column("fragile_8bit", np.bool_, "as fragile, on the grid"),
    Column("prediction_8bit", np.int64, "as prediction, on the grid"),
    Column("forwards", np.int64, "passes the norm's own attack says it spent"),
    Column("backwards", np.int64, "the same"),
    Column("confidence", np.float64, "the softmax's share of the prediction, at the point; nan: no point", np.nan),
    Column("input_prediction", np.int64, "the class the model gives to the input; -1: unknown", -1),
    Column("input_confidence", np.float64, "the softmax's share of that; nan: unknown", np.nan),
)
NAMES = tuple(column.name for column in COLUMNS)
OLDEST = tuple(column.name for column in COLUMNS if column.default is None)
"""Columns of the oldest files."""

MARKS = np.unique(np.round(10 ** np.arange(0, 7.01, 0.1)).astype(np.int64))
"""Numbers of forward plus backward passes at which a trace records the best distance so far: ten per decade."""


@dataclass(frozen=True)
class Trace:
    """The best distance so far of a norm's own attack, against the passes it has spent.

    Example:
        >>> trace = evaluation.trace("l2")
        >>> trace.distances.shape == (evaluation.samples, len(trace.passes))
        True
    """

    passes: NDArray[Any]
    """Numbers of forward plus backward passes, shape (marks,)."""
    distances: NDArray[Any]
    """Best distances, shape (samples, marks): inf if nothing was found within that many passes, nan if unknown."""


def typed(columns: Mapping[str, Any]) -> Columns:
    """Return the columns in their order and with their types; ValueError unless they are exactly `COLUMNS`."""
    if set(columns) != set(NAMES):
        raise ValueError(f"expected the columns {NAMES}, got {tuple(columns)}")
    return {
        column.name: np.asarray(columns[column.name], dtype=object if column.dtype is str else column.dtype)
        for column in COLUMNS
    }


def check_columns(columns: Columns) -> None:
    """Raise ValueError for rows that contradict themselves: the distance of a fooled sample is positive and finite."""
    fooled = columns["status"] == FOOLED
    distance = columns["distance"]
    wrong = np.flatnonzero(fooled & ~((distance > 0) & np.isfinite(distance)))
    if len(wrong):
        row = wrong[0]
        raise ValueError(
            f"sample {columns['sample'][row]} ({columns['norm'][row]}): expected a distance above 0 for a "
            f"fooled sample, got {distance[row]}"
        )


def check_rows(columns: Columns, samples: range, norms: tuple[str, ...]) -> None:
    """Raise ValueError unless the rows are those of these samples, once per norm, in this order."""
    expected_norms = np.repeat(np.array(norms, dtype=object), len(samples))
    if not np.array_equal(columns["sample"], np.tile(samples, len(norms))) or not np.array_equal(
        columns["norm"], expected_norms
    ):
        raise ValueError(f"expected samples {samples.start} to {samples.stop - 1} in {', '.join(norms)}, got others")


def joined(parts: list[Columns]) -> Columns:
    """Concatenate the records of several chunks or norms."""
    return {name: np.concatenate([part[name] for part in parts]) for name in NAMES}


def to_parquet(columns: Columns, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a Parquet file. The same columns and metadata give the same bytes."""
    arrow, parquet = _arrow()
    fields = [
        arrow.field(column.name, _arrow_type(arrow, column), nullable=False, metadata={"about": column.about})
        for column in COLUMNS
    ]
    arrays = [arrow.array(columns[column.name].tolist(), type=_arrow_type(arrow, column)) for column in COLUMNS]
    table = arrow.Table.from_arrays(arrays, schema=arrow.schema(fields, metadata=dict(metadata)))
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def from_parquet(content: bytes) -> Columns:
    """Read the columns of a Parquet file of records; ValueError if it is none."""
    arrow, parquet = _arrow()
    with _reading(arrow):
        # In this thread only: a thread of Arrow that still holds a Python object when the program ends aborts it.
        file = parquet.ParquetFile(arrow.BufferReader(content), pre_buffer=False, page_checksum_verification=True)
        table = file.read(use_threads=False)
    names = tuple(table.column_names)
    if names not in (NAMES, OLDEST):
        raise ValueError(f"expected the columns {', '.join(NAMES)}, got {', '.join(names)}")
    present = [column for column in COLUMNS if column.name in names]
    for column, found in zip(present, table.schema.types, strict=True):
        if found != _arrow_type(arrow, column):
            raise ValueError(f"{column.name}: expected a column of {_arrow_type(arrow, column)}, got {found}")
    missing = {column.name: [column.default] * table.num_rows for column in COLUMNS if column not in present}
    # to_pylist instead of to_numpy, which would import pandas.
    return typed({**missing, **{name: table.column(name).to_pylist() for name in names}})


def metadata_of(content: bytes) -> dict[str, str]:
    """Read the metadata of a Parquet file; ValueError if it is none."""
    arrow, parquet = _arrow()
    with _reading(arrow):
        found = parquet.read_schema(arrow.BufferReader(content)).metadata or {}
        return {name.decode(): value.decode() for name, value in found.items()}


def joined_traces(parts: Sequence[NDArray[Any]]) -> Trace | None:
    """Join the traces of all chunks; None if no sample has one.

    A chunk whose trace ends earlier stays at its last distances.
    """
    marks = max(part.shape[1] for part in parts)
    distances = np.concatenate([np.pad(part, ((0, 0), (0, marks - part.shape[1])), mode="edge") for part in parts])
    return None if np.isnan(distances).all() else Trace(MARKS[:marks], distances)


def to_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a compressed npz file."""
    buffer, named = io.BytesIO(), dict[str, Any](arrays)
    # Without allow_pickle=False, which NumPy up to 2.1 would store as one more array. `from_npz` loads no pickles.
    np.savez_compressed(buffer, **named)
    return buffer.getvalue()


def from_npz(content: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@contextmanager
def _reading(arrow: Any) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"cannot be read as Parquet ({error})") from error


def _arrow() -> tuple[Any, Any]:
    purpose = "storing the results of a run on disk"
    arrow = need("pyarrow", extra="evaluate", purpose=purpose)
    return arrow, need("pyarrow.parquet", extra="evaluate", purpose=purpose)


def _arrow_type(arrow: Any, column: Column) -> Any:
    return arrow.string() if column.dtype is str else arrow.from_numpy_dtype(np.dtype(column.dtype))
