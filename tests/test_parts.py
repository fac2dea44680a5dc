"""Embeddings in parts: continued after a stop, divided, small in memory, failures listed."""

from __future__ import annotations

import csv
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

import macl
from forking import Forked
from macl.core.batching import ahead
from macl.core.errors import UserError
from macl.modalities.protocols import Dataset
from macl.runs import parts
from macl.runs.parts import Plan, share_of, write_parts
from macl.runs.stored import Stored
from shared import trained
from tiny import environment, forked_macl, recipe, run_ranks


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts") / "pictures"
    for number in range(23):
        place = folder / ("dark" if number % 2 else "bright")
        place.mkdir(parents=True, exist_ok=True)
        color = (10 * number, 100 - number, 50 if number % 2 else 200)
        Image.new("RGB", (8, 8), color).save(place / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def run() -> Any:
    return trained(recipe("epochs=1"))


def tables(folder: Path) -> list[Any]:
    return [pq.read_table(file) for file in sorted(folder.glob("part-*.parquet"))]


class Numbers(Dataset):
    """Item i is the number i; `broken` items cannot be read."""

    class _Names:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> str:
            return f"item {index}"

    def __init__(self, count: int, broken: tuple[int, ...] = ()) -> None:
        self.names, self.broken = self._Names(count), broken  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise UserError(f"item {index} is torn")
        return index

    def collate(self, samples: list[int]) -> Tensor:
        return torch.tensor(samples, dtype=torch.float32)


def embed(dataset: Dataset) -> Tensor:
    values = dataset.collate([dataset[index] for index in range(len(dataset))])
    return torch.stack([values, values + 0.5], dim=1)


def test_the_union_of_parts_is_the_one_file(run: Any, pictures: Path, tmp_path: Path) -> None:
    assert macl.embed_parts(run, pictures, tmp_path / "v", part_items=5) == []
    whole = macl.embed(run, pictures)
    stored = Stored.open(tmp_path / "v")
    assert len(stored.parts) == 5
    assert stored.take(np.arange(23), ["name"])["name"].to_pylist() == whole.names
    np.testing.assert_allclose(stored.numbers(np.arange(23)), whole.values.numpy(), atol=1e-6)
    assert stored.encoder == whole.encoder
    (first, *_) = tables(tmp_path / "v")
    assert first.column_names == ["name", "row", "label", "vector"]
    assert first["label"].to_pylist() == ["bright"] * 5
    assert first["row"].to_pylist() == [1, 2, 3, 4, 5]


def test_a_stopped_job_continues_and_finished_parts_stay(
    run: Any, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast sibling of the kill test: the writing of the third part is stopped."""
    expected = tmp_path / "expected"
    macl.embed_parts(run, pictures, expected, part_items=5)
    write, seen = parts.write_part, []

    def stop_at_third(*given: Any) -> None:
        seen.append(given[-1])
        if len(seen) == 3:
            raise KeyboardInterrupt
        write(*given)

    monkeypatch.setattr(parts, "write_part", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        macl.embed_parts(run, pictures, tmp_path / "v", part_items=5)
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "v").glob("part-*")}
    assert len(times) == 2
    with pytest.raises(UserError, match="3 of 5 parts are missing"):
        Stored.open(tmp_path / "v")
    assert macl.embed_parts(run, pictures, tmp_path / "v", part_items=5) == []
    assert seen == [0, 1, 2, 2, 3, 4]
    assert {file: file.stat().st_mtime_ns for file in times} == times
    assert tables(tmp_path / "v") == tables(expected)


@pytest.mark.slow
def test_kill_twice_in_the_middle(run: Any, pictures: Path, tmp_path: Path) -> None:
    command = ["macl_script.py", "embed", run.folder, pictures, "--part-items", "1", "-o"]
    done = forked_macl(*command[1:], tmp_path / "expected")
    assert done.returncode == 0, done.stderr
    place, chance = tmp_path / "v", random.Random(0)
    for _ in range(2):
        before = len(list(place.glob("part-*.parquet")))
        forked = Forked(*command, place, environment=environment())
        deadline = time.monotonic() + 60
        while len(list(place.glob("part-*.parquet"))) <= before and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(chance.random() / 50)
        forked.kill()
        assert before < len(list(place.glob("part-*.parquet"))) < 23
    done = forked_macl(*command[1:], place)
    assert done.returncode == 0, done.stderr
    assert "23 vectors" in done.stderr
    assert tables(place) == tables(tmp_path / "expected")
    assert not list(place.glob(".*partial"))


def test_divided_by_hand_and_by_ranks(run: Any, pictures: Path, tmp_path: Path) -> None:
    given = {"part_items": 5}
    assert macl.embed_parts(run, pictures, tmp_path / "v", parts=(2, 2), **given) == [0, 2, 4]
    assert macl.embed_parts(run, pictures, tmp_path / "v", parts=(1, 2), **given) == []
    command = ["macl_script.py", "embed", run.folder, pictures, "--part-items", "5", "-o"]
    for rank in run_ranks(*command, tmp_path / "ranks"):
        assert rank.returncode == 0, rank.stderr
    assert tables(tmp_path / "ranks") == tables(tmp_path / "v")
    with pytest.raises(UserError, match="1/2 to 2/2"):
        share_of(range(4), 3, 2)


def test_parts_of_something_else_are_refused(run: Any, pictures: Path, tmp_path: Path) -> None:
    macl.embed_parts(run, pictures, tmp_path / "v", part_items=20)
    other = trained(recipe("epochs=1", "seed=3"))
    with pytest.raises(UserError, match="encoder differs"):
        macl.embed_parts(other, pictures, tmp_path / "v", part_items=20)
    with pytest.raises(UserError, match="items, names differs"):
        macl.embed_parts(run, pictures / "dark", tmp_path / "v", part_items=20)
    with pytest.raises(UserError, match="part_items, dtype differs"):
        macl.embed_parts(run, pictures, tmp_path / "v", dtype="int8", part_items=5)
    with pytest.raises(UserError, match="holds something else"):
        macl.embed_parts(run, pictures, pictures)


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("int8", 0.5 / 127)])
def test_smaller_numbers(
    run: Any, pictures: Path, tmp_path: Path, dtype: str, error: float
) -> None:
    macl.embed_parts(run, pictures, tmp_path / "v", dtype=dtype)
    whole = macl.embed(run, pictures)
    found = Stored.open(tmp_path / "v").numbers(np.arange(23))
    largest = whole.values.abs().amax(dim=1, keepdim=True).numpy()
    assert (np.abs(found - whole.values.numpy()) <= error * largest * 1.01).all()
    whole.save(tmp_path / "v.parquet", dtype=dtype)
    np.testing.assert_array_equal(Stored.open(tmp_path / "v.parquet").numbers(np.arange(23)), found)
    kind = pq.read_schema(tmp_path / "v.parquet").field("vector").type.value_type
    assert str(kind) == {"float16": "halffloat", "int8": "int8"}[dtype]
    with pytest.raises(UserError, match=r"is for \.parquet"):
        whole.save(tmp_path / "v.npy", dtype=dtype)


def test_failed_items_are_listed_and_the_others_embedded(tmp_path: Path) -> None:
    dataset = Numbers(10, broken=(3, 4, 9))
    plan = Plan.of(dataset, "e", "float32", 4)
    plan.claim(tmp_path / "v")
    write_parts(embed, dataset, tmp_path / "v", plan, range(plan.parts))
    rows = np.concatenate([table["row"].to_numpy() for table in tables(tmp_path / "v")])
    assert rows.tolist() == [1, 2, 3, 6, 7, 8, 9]
    with (tmp_path / "v" / "part-00001.skipped.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:] == [["5", "item 4", "item 4 is torn"]]
    assert not (tmp_path / "v" / "part-00003.parquet").exists()


def test_memory_does_not_grow_with_the_items(tmp_path: Path) -> None:
    peaks = []
    for count in (4_000, 40_000):
        dataset = Numbers(count)
        plan = Plan.of(dataset, "e", "float16", 1_000)
        plan.claim(tmp_path / str(count))
        write_parts(embed, dataset, tmp_path / str(count), plan, range(1))  # imports, caches
        tracemalloc.start()
        write_parts(embed, dataset, tmp_path / str(count), plan, range(plan.parts))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(map(len, tables(tmp_path / str(count)))) == count
    assert peaks[1] < 1.3 * peaks[0]


def test_work_ahead_is_bounded_ordered_and_ends() -> None:
    made = []

    def numbers() -> Any:
        for number in range(100):
            made.append(number)
            yield number

    some = ahead(numbers())
    assert [next(some), next(some)] == [0, 1]
    some.close()
    assert made == [0, 1, 2]
    assert list(ahead(numbers())) == list(range(100))

    def failing() -> Any:
        yield 1
        raise UserError("torn")

    with pytest.raises(UserError, match="torn"):
        list(ahead(failing()))


def test_the_command_reports_and_explains(run: Any, pictures: Path, tmp_path: Path) -> None:
    given = ["embed", run.folder, pictures, "--part-items", "10", "-o"]
    done = forked_macl(*given, tmp_path / "v", "--parts", "1/2", "--dtype", "float16")
    assert "1 parts of" in done.stderr
    wrong = forked_macl(*given, tmp_path / "v.npy", "--parts", "1/2")
    assert (wrong.returncode, "need a folder" in wrong.stderr) == (2, True)


def test_parts_and_files_of_the_first_coordinates(run: Any, pictures: Path, tmp_path: Path) -> None:
    whole = macl.embed(run.folder, pictures)
    macl.embed_parts(run.folder, pictures, tmp_path / "v", part_items=9, dims=3)
    macl.embed(run.folder, pictures, dims=3).save(tmp_path / "v.parquet")
    for place in (tmp_path / "v", tmp_path / "v.parquet"):
        stored = Stored.open(place)
        found = stored.numbers(np.arange(len(stored)))
        np.testing.assert_allclose(found, whole.values[:, :3].numpy(), atol=1e-5)
        # A query is cut to the width of what is searched.
        query = pictures / whole.names[4]
        assert macl.search(run.folder, query, place, k=1)[0].score == pytest.approx(1, abs=1e-5)
    with pytest.raises(UserError, match="dims differs"):
        macl.embed_parts(run.folder, pictures, tmp_path / "v", part_items=9)
    with pytest.raises(UserError, match="dims=9999: the encoder's vectors have"):
        macl.embed_parts(run.folder, pictures, tmp_path / "w", dims=9999)
