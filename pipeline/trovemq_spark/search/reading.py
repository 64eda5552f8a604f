"""Reads many pieces: in threads here if they are small, in Spark's tasks if they are large."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from trovemq_spark.job import Progress
from trovemq_spark.search.answer import SOURCE_COLUMN, Answer
from trovemq_spark.search.pieces import Piece
from trovemq_spark.search.question import ANSWER_COLUMNS, Question
from trovemq_spark.table.schema import DAMAGE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE_BYTES_MAX: Final = 1 << 30
"""Up to this many bytes are read in this process, because Spark's start alone takes longer."""
_THREADS_MAX: Final = 4
_TASKS_PER_CORE: Final = 4
_COLUMNS: Final = [*ANSWER_COLUMNS, SOURCE_COLUMN]


class Reading:
    """Collects pieces, then reads them all into an answer."""

    def __init__(
        self,
        session: SparkSession | Callable[[], SparkSession] | None,
        question: Question,
        limit: int,
        *,
        newest_first: bool,
    ) -> None:
        self._session = session
        self._question = question
        self._limit = limit
        self._newest_first = newest_first
        self._pieces: list[tuple[str, Piece]] = []

    def add(self, source: str, pieces: Sequence[Piece]) -> None:
        self._pieces += [(source, piece) for piece in pieces]

    @property
    def needs_spark(self) -> bool:
        byte_count = sum(piece.byte_count for _, piece in self._pieces)
        return self._session is not None and bool(self._pieces) and byte_count > HERE_BYTES_MAX

    def run(self, answer: Answer, progress: Progress) -> None:
        """Raises OSError, TroveError."""
        progress.begin("search", len(self._pieces))
        if self.needs_spark:
            self._in_tasks(answer)
            progress.advance(len(self._pieces))
        else:
            self._here(answer, progress)

    def _here(self, answer: Answer, progress: Progress) -> None:
        threads = min(_THREADS_MAX, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads) as executor:
            work = [executor.submit(self._best, source, piece) for source, piece in self._pieces]
            try:
                for done in as_completed(work):
                    for source, rows in done.result():
                        answer.add(source, rows)
                    progress.advance()
            except BaseException:
                executor.shutdown(cancel_futures=True)
                raise

    def _best(self, source: str, piece: Piece) -> list[tuple[str, pa.Table]]:
        found = _Best(self._limit, self._newest_first)
        found.read(source, piece, self._question)
        return [(source, found.rows())]

    def _in_tasks(self, answer: Answer) -> None:
        from pyspark.sql import types

        from trovemq_spark.table.schema import spark_schema

        session = self._session() if callable(self._session) else self._session
        assert session is not None, "asked for by needs_spark"
        question, limit, newest_first = self._question, self._limit, self._newest_first

        def best_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for source, piece in zip(batch.column("source"), batch.column("piece"), strict=True):
                    best = _Best(limit, newest_first)
                    best.read(source.as_py(), pickle.loads(piece.as_py()), question)  # noqa: S301  (our own)
                    rows = best.rows()
                    named = rows.append_column(SOURCE_COLUMN, pa.repeat(source, rows.num_rows))
                    yield from named.select(_COLUMNS).combine_chunks().to_batches()

        work = pa.table(
            {
                "source": [source for source, _ in self._pieces],
                "piece": pa.array([pickle.dumps(piece) for _, piece in self._pieces], pa.binary()),
            }
        )
        tasks = min(work.num_rows, _TASKS_PER_CORE * session.sparkContext.defaultParallelism)
        frame = session.createDataFrame(work).repartition(tasks)
        schema = spark_schema(ANSWER_COLUMNS).add(SOURCE_COLUMN, types.StringType())
        found = frame.mapInArrow(best_rows, schema).toArrow()
        for source in sorted(set(found.column(SOURCE_COLUMN).to_pylist())):
            chosen = found.filter(pa.compute.equal(found.column(SOURCE_COLUMN), source))
            answer.add(source, chosen.drop_columns([SOURCE_COLUMN]))


class _Best:
    """The best rows of one piece: one more than the limit, to detect that there are more."""

    def __init__(self, limit: int, newest_first: bool) -> None:
        self._answer = Answer(limit + 1, newest_first=newest_first)
        self._damage: list[pa.RecordBatch] = []

    def read(self, source: str, piece: Piece, question: Question) -> None:
        for rows in piece.find(question):
            is_damage = rows.column(DAMAGE_COLUMN).is_valid()
            if is_damage.true_count:
                self._damage.append(rows.filter(is_damage))
            self._answer.add(source, rows.filter(pc.invert(is_damage)))

    def rows(self) -> pa.Table:
        rows = self._answer.table().select(ANSWER_COLUMNS)
        return pa.concat_tables([rows, *(pa.Table.from_batches([one]) for one in self._damage)])
