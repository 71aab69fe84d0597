"""A file of completions to a store of samples: streaming, on several processes, resumable.

The input is JSON lines, read once, in chunks of bytes-addressed lines. Each chunk becomes one Arrow
file (the stream format that ``datasets.Dataset.from_file`` maps), written beside and renamed; a run
that was stopped goes on behind the last finished chunk. What was dropped, and why, is counted.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from casebook.dflash.batch import Sample
from casebook.dflash.chat import ChatSettings, to_sample
from casebook.dflash.errors import StoreError
from casebook.runs.files import write_json

MANIFEST = "tokens.json"


@dataclass(frozen=True)
class Chunk:
    """One finished chunk: its file, the bytes of input it covers, and its counts."""

    file: str
    start: int
    stop: int
    samples: int
    tokens: int
    supervised: int
    dropped: dict[str, int]


@dataclass(frozen=True)
class Report:
    """What tokenising found."""

    samples: int
    tokens: int
    supervised_tokens: int
    dropped: dict[str, int]

    @property
    def supervised_share(self) -> float:
        """Supervised tokens of all tokens."""
        return self.supervised_tokens / self.tokens if self.tokens else 0.0

    def table(self) -> pd.DataFrame:
        """One row a fact."""
        rows = [
            ("samples", self.samples, "samples"),
            ("tokens", self.tokens, "tokens"),
            ("supervised", self.supervised_tokens, "tokens"),
            ("supervised share", round(self.supervised_share, 4), ""),
            *((f"dropped: {why}", n, "samples") for why, n in sorted(self.dropped.items())),
        ]
        table = pd.DataFrame(rows, columns=["fact", "value", "unit"], dtype=object)
        return table.set_index("fact")  # objects: a count stays a whole number beside a share


def tokenize_completions(
    source: Path,
    tokenizer: Path,
    out: Path,
    settings: ChatSettings | None = None,
    processes: int = 1,
    chunk_lines: int = 2000,
    progress: bool = True,
) -> Report:
    """Tokenise ``source`` (JSON lines) with the tokenizer in directory ``tokenizer`` into ``out``."""
    settings = settings or ChatSettings()
    identity = _identity(source, tokenizer, settings, chunk_lines)
    chunks = _resume(out, identity)
    size = source.stat().st_size
    start = chunks[-1].stop if chunks else 0
    bar = tqdm(
        total=size, initial=start, unit="B", unit_scale=True, desc="tokenise", disable=not progress
    )
    with bar, _pool(processes) as pool:
        for chunk in _chunks_made(
            pool, source, tokenizer, out, settings, start, chunk_lines, processes, len(chunks)
        ):
            chunks.append(chunk)
            _write_manifest(out, identity, chunks)
            bar.update(chunk.stop - chunk.start)
    _write_manifest(out, identity, chunks)
    return _report(chunks)


def read_samples(out: Path) -> list[Sample]:
    """All samples of a store, in the input's order; StoreError where a file is cut short."""
    manifest = _manifest(out)
    found: list[Sample] = []
    for entry in manifest["chunks"]:
        found += _read_chunk(out, Chunk(**entry))
    return found


def read_report(out: Path) -> Report:
    """The counts of a finished store."""
    return _report([Chunk(**c) for c in _manifest(out)["chunks"]])


def _identity(
    source: Path, tokenizer: Path, settings: ChatSettings, chunk_lines: int
) -> dict[str, Any]:
    if not source.is_file():
        raise StoreError(f"There is no file {source}; give JSON lines of completions.")
    digest = hashlib.sha256()
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    found = [tokenizer / n for n in names if (tokenizer / n).is_file()]
    if not found:
        raise StoreError(f"There is no tokenizer in {tokenizer}; give the target's directory.")
    for path in found:
        digest.update(path.read_bytes())
    with source.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()
    return {
        "settings": asdict(settings),
        "tokenizer_sha256": digest.hexdigest(),
        "source_head_sha256": head,
        "chunk_lines": chunk_lines,
    }


def _resume(out: Path, identity: dict[str, Any]) -> list[Chunk]:
    out.mkdir(parents=True, exist_ok=True)
    if not (out / MANIFEST).exists():
        return []
    manifest = _manifest(out)
    if manifest["identity"] != identity:
        raise StoreError(
            f"{out} was begun from other completions, another tokenizer or other settings; "
            "give an empty directory."
        )
    return [Chunk(**c) for c in manifest["chunks"]]


def _chunks_made(
    pool: Executor | None, source: Path, tokenizer: Path, out: Path, settings: ChatSettings,
    start: int, lines: int, processes: int, first: int,
) -> Iterator[Chunk]:  # fmt: skip
    """Finished chunks in order, with at most two per process under way."""
    spans = enumerate(_spans(source, start, lines), start=first)
    jobs = ((source, tokenizer, out, settings, n, a, b) for n, (a, b) in spans)
    if pool is None:
        yield from (_make_chunk(*job) for job in jobs)
        return
    waiting: list[Any] = []
    for job in jobs:
        waiting.append(pool.submit(_make_chunk, *job))
        if len(waiting) >= 2 * processes:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _spans(source: Path, start: int, lines: int) -> Iterator[tuple[int, int]]:
    with source.open("rb") as file:
        file.seek(start)
        while True:
            stop = start
            for _ in range(lines):
                line = file.readline()
                if not line:
                    break
                stop += len(line)
            if stop == start:
                return
            yield start, stop
            start = stop


_loaded: dict[Path, Any] = {}


def _make_chunk(
    source: Path,
    tokenizer: Path,
    out: Path,
    settings: ChatSettings,
    number: int,
    start: int,
    stop: int,
) -> Chunk:
    if tokenizer not in _loaded:
        from transformers import AutoTokenizer

        _loaded[tokenizer] = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    dropped: Counter[str] = Counter()
    samples: list[Sample] = []
    with source.open("rb") as file:
        file.seek(start)
        at = start
        while at < stop:
            line = file.readline()
            key, at = f"{source.name}@{at}", at + len(line)
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                dropped["not JSON"] += 1
                continue
            made = to_sample(
                record if isinstance(record, dict) else {}, _loaded[tokenizer], settings, key
            )
            if isinstance(made, Sample):
                samples.append(made)
            else:
                dropped[made] += 1
    name = f"tokens-{number:06d}.arrow"
    write_arrow(samples, out / name)
    return Chunk(
        file=name,
        start=start,
        stop=stop,
        samples=len(samples),
        tokens=sum(map(len, samples)),
        supervised=sum(int(s.loss_mask.sum()) for s in samples),
        dropped=dict(dropped),
    )


def write_arrow(samples: Sequence[Sample], path: Path) -> None:
    """An Arrow stream of (input_ids, loss_mask, key), written beside and renamed."""
    import pyarrow as pa  # type: ignore[import-untyped]

    table = pa.table(
        {
            "input_ids": pa.array([s.input_ids.tolist() for s in samples], pa.list_(pa.int32())),
            "loss_mask": pa.array([s.loss_mask.tolist() for s in samples], pa.list_(pa.uint8())),
            "key": pa.array([s.key for s in samples], pa.string()),
        }
    )
    partial = path.with_name(path.name + ".partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    partial.replace(path)


def _read_chunk(out: Path, chunk: Chunk) -> list[Sample]:
    import pyarrow as pa  # type: ignore[import-untyped]

    path = out / chunk.file
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
        rows = [table[name].to_pylist() for name in ("input_ids", "loss_mask", "key")]
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error}); tokenise again.") from error
    samples = [
        Sample(torch.tensor(i, dtype=torch.int64), torch.tensor(m, dtype=torch.uint8), k)
        for i, m, k in zip(*rows, strict=True)
    ]
    if len(samples) != chunk.samples or sum(map(len, samples)) != chunk.tokens:
        raise StoreError(
            f"{path} holds {len(samples)} samples where {chunk.samples} were written; tokenise again."
        )
    return samples


def _manifest(out: Path) -> dict[str, Any]:
    path = out / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        manifest["chunks"], manifest["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{out} is no store of tokens ({error}); tokenise into it first."
        ) from error
    return manifest


def _write_manifest(out: Path, identity: dict[str, Any], chunks: Sequence[Chunk]) -> None:
    write_json(out / MANIFEST, {"identity": identity, "chunks": [asdict(c) for c in chunks]})


def _report(chunks: Sequence[Chunk]) -> Report:
    dropped: Counter[str] = Counter()
    for chunk in chunks:
        dropped.update(chunk.dropped)
    return Report(
        sum(c.samples for c in chunks),
        sum(c.tokens for c in chunks),
        sum(c.supervised for c in chunks),
        dict(dropped),
    )


class _pool:  # noqa: N801 - used as a function
    """A pool of ``processes`` (none for 1), closed at the end; spawned, for tokenizers dislike forks."""

    def __init__(self, processes: int) -> None:
        self.pool = (
            ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
            if processes > 1
            else None
        )

    def __enter__(self) -> Executor | None:
        return self.pool

    def __exit__(self, *_: Any) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)
