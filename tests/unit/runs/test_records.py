"""Records are read as they were written, and broken files are not read at all."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest
from numpy.typing import NDArray

from pdpgd.runs.records import COLUMNS, NAMES, Columns, from_npz, from_parquet, joined, to_npz, to_parquet, typed

ROWS = 6
VALUES: dict[Any, list[Any]] = {
    str: ["linf", "", "fooled", "µ — ∞", "another image", ""],
    np.bool_: [True, False, True, True, False, False],
    np.int64: [-1, 0, 2**40, 3, -(2**63), 2**63 - 1],
    np.float64: [np.inf, np.nan, 0.1, 1 / 3, -0.0, 5e-324],
}
METADATA = {"pdpgd.job": "chunk-00000"}


@pytest.fixture
def columns() -> Columns:
    """Each column's values are in another order."""
    return typed({column.name: np.roll(_of(VALUES[column.dtype]), place) for place, column in enumerate(COLUMNS)})


@pytest.fixture
def content(columns: Columns) -> bytes:
    return to_parquet(columns, METADATA)


def _of(values: list[Any]) -> NDArray[Any]:
    return np.array(values, dtype=object if isinstance(values[0], str) else None)


def same(first: Columns, second: Columns) -> bool:
    """To the last bit, types and order of the columns included."""
    return list(first) == list(second) and all(
        first[name].dtype == second[name].dtype
        and (
            first[name].tolist() == second[name].tolist()
            if first[name].dtype == object
            else first[name].tobytes() == second[name].tobytes()
        )
        for name in first
    )


def footer_of(content: bytes) -> int:
    """Where the footer begins: a Parquet file ends with its length and four letters."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def test_every_value_and_type_comes_back(columns: Columns, content: bytes) -> None:
    assert same(from_parquet(content), columns)


def test_no_rows_come_back_as_no_rows() -> None:
    columns = typed({name: [] for name in NAMES})
    assert same(from_parquet(to_parquet(columns, {})), columns)


def test_equal_columns_give_equal_bytes(columns: Columns, content: bytes) -> None:
    copies = {name: np.array(columns[name].tolist(), dtype=columns[name].dtype) for name in reversed(NAMES)}
    assert to_parquet(typed(copies), dict(METADATA)) == content


def test_another_value_or_fact_gives_other_bytes(columns: Columns, content: bytes) -> None:
    distance = columns["distance"].copy()
    distance[2] = np.nextafter(distance[2], 1)
    assert to_parquet({**columns, "distance": distance}, METADATA) != content
    assert to_parquet(columns, {"pdpgd.job": "chunk-00001"}) != content


def test_pandas_reads_the_same_values(columns: Columns, content: bytes) -> None:
    frame = pandas.read_parquet(io.BytesIO(content))
    assert tuple(frame.columns) == NAMES
    for name in NAMES:
        read = frame[name].to_numpy()
        if columns[name].dtype == object:
            assert read.tolist() == columns[name].tolist()
        else:
            assert read.dtype == columns[name].dtype
            np.testing.assert_array_equal(read, columns[name])


def test_the_file_says_what_each_column_is(content: bytes) -> None:
    schema = pyarrow.parquet.read_schema(io.BytesIO(content))
    assert schema.metadata[b"pdpgd.job"] == b"chunk-00000"
    for column in COLUMNS:
        assert schema.field(column.name).metadata[b"about"].decode() == column.about


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_not_read(content: bytes, share: float) -> None:
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        from_parquet(content[: int(share * len(content))])


def test_a_flipped_bit_among_the_values_is_noticed_or_harmless(columns: Columns, content: bytes) -> None:
    """A page's values have a checksum; its header, and the file's own footer, may hold bits that mean nothing."""
    noticed = 0
    for place in range(4, footer_of(content), 5):
        broken = bytearray(content)
        broken[place] ^= 1 << place % 8
        try:
            assert same(from_parquet(bytes(broken)), columns)
        except ValueError:
            noticed += 1
    assert noticed > (footer_of(content) - 4) / 5 / 2


def test_a_flipped_bit_in_the_footer_never_gives_other_values(columns: Columns, content: bytes) -> None:
    noticed = 0
    for place in range(footer_of(content), len(content), 17):
        broken = bytearray(content)
        broken[place] ^= 1 << place % 8
        try:
            assert same(from_parquet(bytes(broken)), columns)
        except ValueError:
            noticed += 1
    assert noticed


@pytest.mark.parametrize("ending", [b"PAR1", b"\0\0\0\0PAR1", b"not a table"])
def test_what_is_no_parquet_is_not_read(ending: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        from_parquet(ending)


def test_a_file_with_other_columns_is_not_read(columns: Columns) -> None:
    buffer = io.BytesIO()
    pandas.DataFrame(dict(columns)).drop(columns="margin").to_parquet(buffer)
    with pytest.raises(ValueError, match="expected the columns"):
        from_parquet(buffer.getvalue())


def test_a_file_with_a_column_of_another_type_is_not_read(columns: Columns) -> None:
    buffer = io.BytesIO()
    pandas.DataFrame({**columns, "sample": columns["distance"]}).to_parquet(buffer)
    with pytest.raises(ValueError, match="sample: expected a column of int64, got double"):
        from_parquet(buffer.getvalue())


def test_a_missing_and_an_extra_column_are_refused(columns: Columns) -> None:
    with pytest.raises(ValueError, match="expected the columns"):
        typed({name: columns[name] for name in NAMES[1:]})
    with pytest.raises(ValueError, match="expected the columns"):
        typed({**columns, "more": columns["sample"]})


def test_columns_are_put_in_their_order_and_types(columns: Columns) -> None:
    mixed = {name: columns[name].tolist() for name in reversed(NAMES)}
    assert same(typed(mixed), columns)


def test_parts_are_joined_row_after_row(columns: Columns) -> None:
    parts: list[Columns] = [
        {name: values[:2] for name, values in columns.items()},
        {name: values[2:] for name, values in columns.items()},
    ]
    assert same(joined(parts), columns)


def test_arrays_come_back_from_an_npz_as_they_were() -> None:
    arrays: dict[str, NDArray[Any]] = {
        "sample": np.arange(3),
        "l2": np.array([0.1, np.inf, np.nan], dtype=np.float32).reshape(3, 1, 1),
        "l2_8bit": np.array([[0, 255]], dtype=np.uint8),
    }
    back = from_npz(to_npz(arrays))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()
    assert to_npz(arrays) == to_npz(back)


def test_a_pickle_in_an_npz_is_not_loaded() -> None:
    with pytest.raises(ValueError, match="allow_pickle=False"):
        from_npz(to_npz({"a": np.array([{}], dtype=object)}))
