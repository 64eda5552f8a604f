"""Reads an archive: the committed files by name, as an Arrow dataset, or as a Spark DataFrame.

    pyarrow   arrow_dataset(path).to_table(filter=…)
    DuckDB    SELECT … FROM read_parquet(?)          with archive_files(path)
    pandas    arrow_dataset(path).to_table().to_pandas()
    Spark     read_archive(session, path)

Each row occurs once. Rows of damage (mode = permissive) are in separate files: Selection(damage=True).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trovemq_spark.archive.entry import Selection
from trovemq_spark.archive.manifest import EVERYTHING, Manifest
from trovemq_spark.table.schema import arrow_schema, column_names, spark_schema

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset
    from pyspark.sql import DataFrame, SparkSession


def archive_files(path: str | os.PathLike[str], selection: Selection = EVERYTHING) -> list[str]:
    """Paths or URIs of the committed files that may have rows of the selection, for a program that reads
    Parquet. Raises TroveError ARCHIVE_ILLEGAL."""
    return Manifest.open(path).paths(selection)


def arrow_dataset(path: str | os.PathLike[str], selection: Selection = EVERYTHING) -> Dataset:
    """The committed files as an Arrow dataset. Raises TroveError ARCHIVE_ILLEGAL."""
    from pyarrow import dataset

    manifest = Manifest.open(path)
    files, root = manifest.place.arrow()
    names = [f"{root.rstrip('/')}/{entry.file}" for entry in manifest.files(selection)]
    schema = arrow_schema(column_names(header=True, damage=True))
    return dataset.dataset(names, schema=schema, format="parquet", filesystem=files)


def read_archive(
    session: SparkSession,
    path: str | os.PathLike[str],
    selection: Selection = EVERYTHING,
    columns: Iterable[str] | None = None,
) -> DataFrame:
    """The committed files as a DataFrame with these columns of the table (None: all but those of the header
    and the damage). It may have rows outside of the selection, which chooses whole files. Raises TroveError
    ARCHIVE_ILLEGAL."""
    schema = spark_schema(list(columns) if columns is not None else column_names())
    manifest = Manifest.open(path)
    local = "file://" if manifest.place.local is not None else ""
    paths = [f"{local}{_without_globs(name)}" for name in manifest.paths(selection)]
    if not paths:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).parquet(*paths)


def _without_globs(path: str) -> str:
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)
