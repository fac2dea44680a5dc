"""The parts of a report, each against what it must show."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import synthetic
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tiny
from macl import modalities
from macl.core.similarity import nearest_rows
from macl.experiments.rows import Row
from macl.experiments.statistics import paired_difference
from macl.modalities.graphs.drawing import MOST_NODES, graph_svg
from macl.modalities.molecules.drawing import molecule_drawings
from macl.reporting import Projection
from macl.reporting.build import write_figures
from macl.reporting.charts import Curves, Dots, Heading, Histogram, Line, fit_axis
from macl.reporting.curves import BACKBONE, MAX_POINTS, PROJECTOR, read_curves, training_curves
from macl.reporting.items import Looks, drawings, looks, thumbnails
from macl.reporting.map import MARKERS, UMAP_PAYS, choose_projection, class_style, lay_out
from macl.reporting.neighbors import MAX_QUERIES, evenly_spread, gallery
from macl.reporting.page import run_page
from macl.reporting.templates import PALETTE
from macl.runs import Run


def run_with(folder: Path, metrics: str) -> Run:
    run = Run.create(folder, tiny.recipe())
    run.metrics_file.write_text(metrics, encoding="utf-8")
    return run


# --- the histogram of τ


def test_the_histogram_of_temperatures_is_a_picture_and_no_curve(tmp_path: Path) -> None:
    run = run_with(
        tmp_path / "run",
        "step,epoch,loss,temperature,temperature_in_0.1_0.2,temperature_in_0.2_0.4,lr,monitor\n"
        "10,0,2,0.15,1,0,0.1,\n20,1,1,0.3,0.25,0.75,0.1,\n",
    )
    assert set(read_curves(run)) == {"loss", "temperature", "lr"}
    found = Histogram.read(run)
    assert found is not None
    assert found.edges == (0.1, 0.2, 0.4)
    assert found.shares == ((1.0, 0.0), (0.25, 0.75))
    assert found.epochs == 2
    svg = str(found.svg())
    assert svg.count("<rect") == 3  # empty bins are not drawn
    assert "τ 0.2 to 0.4: 75.0%" in svg
    assert "from about 0.1 to about 0.2" in svg
    page = run_page(run, [found], None, "no map")
    assert "Temperatures of the anchors" in page
    names = {path.name for path in write_figures(tmp_path, [found])}
    assert names == {"temperature-histogram.png", "temperature-histogram.pdf"}


def test_one_temperature_for_all_has_no_histogram(tmp_path: Path) -> None:
    run = run_with(tmp_path, "step,epoch,loss,temperature,lr,monitor\n10,0,2,0.15,0.1,\n")
    assert Histogram.read(run) is None


# --- curves


def test_curves_are_the_columns_over_epochs(tmp_path: Path) -> None:
    run = run_with(
        tmp_path,
        "step,epoch,loss,alignment,floored,monitor,surprise\n"
        "5,0,4.0,0.5,0,,1\n10,0,3.0,nan,0,,1\n10,0,3.0,0.6,0,55,1\n20,1,2.0,0.7,0,60,1\n",
    )
    curves = read_curves(run)
    assert curves["loss"] == {0.5: 4.0, 1.0: 3.0, 2.0: 2.0}
    assert curves["alignment"] == {0.5: 0.5, 1.0: 0.6, 2.0: 0.7}
    assert curves["monitor"] == {1.0: 55.0, 2.0: 60.0}
    assert "floored" not in curves
    charts = training_curves({"run": [run]})
    assert [chart.key for chart in charts] == ["loss", "alignment", "monitor", "surprise"]
    assert list(charts[1].lines[0].y) == [0.5, 0.6, 0.7]
    assert charts[2].heading.title == "kNN accuracy"
    measured = [chart.heading.measured_on for chart in charts]
    assert measured == [PROJECTOR, PROJECTOR, BACKBONE, ""]


def test_a_run_without_metrics_has_no_curves(tmp_path: Path) -> None:
    assert training_curves({"run": [Run.create(tmp_path, tiny.recipe())]}) == []


def test_long_curves_are_thinned_and_keep_their_end(tmp_path: Path) -> None:
    rows = "".join(f"{step},0,{step / 7}\n" for step in range(1, 5001))
    (chart,) = training_curves({"run": [run_with(tmp_path, "step,epoch,loss\n" + rows)]})
    (line,) = chart.lines
    assert MAX_POINTS / 2 < len(line.x) <= MAX_POINTS
    assert line.y[-1] == pytest.approx(5000 / 7)
    assert line.x == sorted(line.x)


def test_settings_are_means_with_bands(tmp_path: Path) -> None:
    head = "step,epoch,loss\n"
    runs = [
        run_with(tmp_path / "a", head + "1,0,1.0\n2,1,2.0\n3,2,9\n"),
        run_with(tmp_path / "b", head + "1,0,3.0\n2,1,2.0\n"),
    ]
    (chart,) = training_curves({"one": runs, "two": runs[:1]})
    one, two = chart.lines
    assert one.x == [1.0, 2.0]  # the second run was stopped there
    assert list(one.y) == [2.0, 2.0]
    std = math.sqrt(2)
    assert one.low == pytest.approx([2 - std, 2.0])
    assert one.high == pytest.approx([2 + std, 2.0])
    assert list(two.y) == [1.0, 2.0, 9.0]
    assert two.low is None


def test_seeds_without_a_common_epoch_have_no_line(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "a", "step,epoch,loss,monitor\n1,0,1,50\n2,1,1,\n"),
        run_with(tmp_path / "b", "step,epoch,loss,monitor\n1,0,1,\n2,1,1,60\n"),
    ]
    (chart,) = training_curves({"one": runs})
    assert chart.key == "loss"


# --- charts


def read_off(svg: str) -> list[tuple[float, float]]:
    """The points of the first line, as the page's script reads them."""

    def axis(name: str):  # type: ignore[no-untyped-def]
        low, high, start, end = map(float, re.search(f'data-{name}="([^"]*)"', svg)[1].split())
        return lambda place: low + (place - start) / (end - start) * (high - low)

    x, y = axis("x"), axis("y")
    pairs = re.search(r'<polyline[^>]*points="([^"]*)"', svg)[1].split()
    return [(x(float(a)), y(float(b))) for a, b in (pair.split(",") for pair in pairs)]


def test_a_chart_can_be_read_off() -> None:
    line = Line("run", [1.0, 2.0, 5.0], [4.0, -3.0, 2.5])
    found = read_off(str(Curves("loss", Heading("Loss", "nats"), [line]).svg()))
    np.testing.assert_allclose(found, list(zip(line.x, line.y, strict=True)), atol=0.03)


@pytest.mark.parametrize("values", [[0.0, 0.0], [7.0, 7.0], [-2.0, -2.0]])
def test_constant_values_are_drawn(values: list[float]) -> None:
    svg = str(Curves("x", Heading("X"), [Line("a", [1.0, 2.0], values)]).svg())
    assert "nan" not in svg.lower().replace("name", "")
    np.testing.assert_allclose([y for _, y in read_off(svg)], values, atol=0.01)


def test_one_point_is_a_dot() -> None:
    svg = str(Curves("x", Heading("X"), [Line("a", [1.0], [2.0])]).svg())
    assert "<circle" in svg


def test_names_in_charts_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    line = Line(hostile, [0, 1], [1.0, 2.0], [1.0, 2.0])
    row = Row({"loss": hostile}, hostile, [0, 1], [1.0, 2.0], 1.5, 0.7, None)
    for chart in (Curves("x", Heading(hostile), [line]), Dots(hostile, [row])):
        svg = chart.svg()
        assert "<script" not in svg
        assert "&lt;script" in svg


def test_means_of_equal_values_are_one_value() -> None:
    """The mean of 0.1, 0.1 and 0.1 is not 0.1: the axis would be 1e-17 wide, with a tick aside."""
    axis = fit_axis([0.1, 0.1 + 0.1 - 0.1, (0.1 + 0.1 + 0.1) / 3], 0, 100)
    assert axis.high - axis.low == pytest.approx(0.01)
    assert axis(0.1) == pytest.approx(50)
    assert any(tick == pytest.approx(0.1) for tick in axis.ticks())


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), st.floats(0, 0.2))
def test_an_axis_holds_its_values(values: list[float], margin: float) -> None:
    axis = fit_axis(values, 10, 200, margin)
    assert axis.low < axis.high
    places = [axis(value) for value in values]
    assert all(10 - 1e-3 <= place <= 200 + 1e-3 for place in places)
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())


# --- map


@pytest.mark.parametrize("chunk", [1, 30, 2**24])
def test_neighbors_are_the_nearest_others(chunk: int) -> None:
    vectors = torch.nn.functional.normalize(
        torch.randn(17, 5, generator=torch.Generator().manual_seed(1)), dim=1
    )
    cosines, found = nearest_rows(vectors, vectors, 4, exclude_own=True, most=chunk)
    for i in range(17):
        others = sorted(
            (j for j in range(17) if j != i), key=lambda j: -float(vectors[i] @ vectors[j])
        )
        assert found[i].tolist() == others[:4]
        assert cosines[i, 0].item() == pytest.approx(float(vectors[i] @ vectors[others[0]]))
    assert nearest_rows(vectors[:3], vectors[:3], 6, exclude_own=True)[0].shape == (3, 2)


def test_pca_keeps_the_shape_of_a_plane() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    turned = plane @ torch.linalg.qr(torch.randn(6, 2, generator=generator).double()).Q.T
    points = lay_out(turned, Projection.PCA)
    assert points.min() == 0
    assert points.max() == 1
    ratio = torch.pdist(torch.from_numpy(points)) / torch.pdist(plane)
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


@pytest.mark.slow
def test_umap_is_repeatable_and_keeps_classes_together() -> None:
    pytest.importorskip("umap", reason="umap-learn is not installed")
    found = synthetic.embedding_map([str(i) for i in range(60)], ["a", "b"])
    threads = torch.get_num_threads()
    points = lay_out(found.vectors, Projection.UMAP)
    assert torch.get_num_threads() == threads  # numba would change it behind torch's back
    assert 0 <= points.min() < points.max() <= 1
    np.testing.assert_array_equal(points, lay_out(found.vectors, Projection.UMAP))
    distances = torch.cdist(*[torch.from_numpy(points)] * 2).fill_diagonal_(math.inf)
    labels = torch.tensor(found.labels)
    assert (labels[distances.argmin(dim=1)] == labels).float().mean() > 0.9


@pytest.mark.parametrize("vectors", [torch.ones(5, 3), torch.randn(4, 1)])
def test_degenerate_embeddings_have_positions(vectors: torch.Tensor) -> None:
    points = lay_out(vectors, Projection.PCA)
    assert np.isfinite(points).all()
    assert points.shape == (len(vectors), 2)


@pytest.mark.parametrize(("items", "expected"), [(240, "pca"), (UMAP_PAYS, "umap")])
def test_umap_is_the_default_where_it_pays(
    items: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert choose_projection(items).value == expected
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_projection(items) is Projection.PCA


def test_classes_have_distinct_styles() -> None:
    assert len({class_style(number) for number in range(40)}) == len(PALETTE) * len(MARKERS) == 40


# --- what items look like


def decoded(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_small_pictures_come_back_as_they_were() -> None:
    images = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8)
    urls, style = thumbnails(images)
    assert (len(urls), style) == (7, "thumb coarse")
    for url, image in zip(urls, images, strict=True):
        pixels = torch.from_numpy(np.asarray(decoded(url)).copy()).permute(2, 0, 1)
        assert torch.equal(pixels, image)


def test_pictures_shrink_until_they_fit() -> None:
    images = [torch.randint(0, 256, (3, 90 + i, 100), dtype=torch.uint8) for i in range(20)]
    (large, style), (small, _) = thumbnails(images), thumbnails(images, most_bytes=12_000)
    assert style == "thumb"
    assert {decoded(url).size for url in large} == {(72, 72)}
    packed = Looks([""] * 20, small, style).packed_pictures()
    assert packed is not None
    assert len(base64.b64decode(packed)) <= 12_000
    (size,) = {decoded(url).size for url in small}
    assert 16 <= size[0] == size[1] < 40


def test_graphs_show_their_nodes_and_edges() -> None:
    # A triangle and a node apart, its edges in both directions and a loop.
    edges = torch.tensor([[0, 1, 1, 2, 2, 0, 0], [1, 0, 2, 1, 0, 2, 0]])
    svg = graph_svg(torch.tensor([0, 0, 1, 1]), edges)
    assert svg is not None
    assert svg.count("h0") == 4
    assert svg.count("L") == 3
    assert svg.count("<path") == 3  # edges, and two kinds of nodes
    places = re.findall(r"M(\d+) (\d+)h0", svg)
    assert len(set(places)) == 4
    assert all(0 <= int(c) <= 120 for place in places for c in place)


def test_odd_graphs_are_drawn_or_left_out() -> None:
    nothing = torch.empty(2, 0, dtype=torch.long)
    alone = graph_svg(torch.tensor([0]), nothing)
    assert alone is not None
    assert "nan" not in alone
    assert graph_svg(torch.zeros(MOST_NODES + 1, dtype=torch.long), nothing) is None


def test_molecules_are_drawn() -> None:
    pytest.importorskip("rdkit", reason="rdkit is not installed")
    ethanol, benzene, invalid = molecule_drawings(["CCO", "c1ccccc1", "no molecule"])
    assert ethanol is not None
    assert benzene is not None
    assert ">O<" in ethanol.replace("\n", "")
    assert benzene.count("<path") > ethanol.count("<path")
    assert invalid is None
    found = synthetic.embedding_map(["CCO", "c1ccccc1", "CCN"])
    shown = looks(modalities.get("molecules"), found.dataset, found.indices)
    url = shown.pictures[1]  # type: ignore[index]
    assert unquote(url) == f"data:image/svg+xml,{benzene}"


def test_long_sentences_are_cut() -> None:
    shown = synthetic.embedding_map(["a" * 1000, "b"])
    found = looks(modalities.get("text"), shown.dataset, shown.indices)
    assert len(found.captions[0]) == 400
    assert found.captions[1] == "b"


def test_drawings_survive_packing() -> None:
    import zlib

    urls = drawings(["<svg>ü</svg>", None])
    packed = Looks(["a", "b"], urls, "drawing").packed_pictures()
    assert packed is not None
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == urls
    assert unquote(urls[0]) == "data:image/svg+xml,<svg>ü</svg>"
    assert urls[1] is None


def test_too_many_drawings_are_thinned_evenly() -> None:
    generator = np.random.default_rng(0)
    svgs = [generator.bytes(400).hex() for _ in range(100)]
    every, kept = drawings(svgs), drawings(svgs, most_bytes=20_000)
    assert None not in every
    assert kept[::3] == every[::3]
    assert Looks([""] * 100, kept, "drawing").undrawn == 66


# --- neighbors


def test_the_gallery_is_one_query_per_large_class() -> None:
    found = synthetic.embedding_map([str(i) for i in range(60)], [f"c{i}" for i in range(10)])
    queries = gallery(found)
    assert [query for query, _ in queries] == list(range(MAX_QUERIES))
    for query, nearest in queries:
        for near in nearest:
            assert near.same == (near.number % 10 == query % 10)
    hits = [j % 10 == i % 10 for i in range(60) for j in found.neighbors[i].tolist()]
    assert found.agreement == pytest.approx(100 * np.mean(hits))


def test_the_gallery_without_labels() -> None:
    found = synthetic.embedding_map([str(i) for i in range(30)])
    assert len(gallery(found)) == MAX_QUERIES
    assert found.agreement is None


@pytest.mark.parametrize(("count", "most"), [(0, 8), (5, 8), (8, 8), (15, 8), (1000, 600)])
def test_spread_items_reach_over_the_whole_sample(count: int, most: int) -> None:
    numbers = evenly_spread(count, most)
    assert len(numbers) == min(count, most)
    steps = np.diff([*numbers, count])
    assert steps.max(initial=1) - steps.min(initial=1) <= 1


# --- figures


def test_every_figure_is_on_file_twice(tmp_path: Path) -> None:
    band = Line("a", [1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])
    chart = Curves("loss", Heading("Loss", "nats"), [band, Line("b", [1.0], [2.0])])
    difference = paired_difference([1.0, 2.0], [0.5, 1.0])
    rows = [
        Row({"loss": "nt-xent"}, "knn top1", [0, 1], [0.5, 1.0], 0.75, 0.3, None),
        Row({"loss": "macl"}, "knn top1", [0, 1], [1.0, 2.0], 1.5, 0.7, difference),
    ]
    shown = synthetic.embedding_map([str(i) for i in range(30)], ["a", "b"])
    files = write_figures(tmp_path / "figures", [chart, shown, Dots("knn top1", rows)])
    assert {file.name for file in files} == {
        f"{name}.{suffix}"
        for name in ("loss", "map", "score-knn-top1")
        for suffix in ("png", "pdf")
    }
    for file in files:
        start = b"\x89PNG" if file.suffix == ".png" else b"%PDF"
        assert file.read_bytes().startswith(start)
    assert min(Image.open(tmp_path / "figures" / "map.png").size) > 600


# --- the page


@settings(max_examples=15)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=3, max_size=3))
def test_any_name_survives_the_page(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    run = Run.create(tmp_path_factory.mktemp("run"), tiny.recipe())
    page = run_page(run, [], synthetic.picture([*names, *synthetic.HOSTILE], names), "")
    block = re.search(r'<script type="application/json" id="map-data">(.*?)</script>', page, re.S)
    assert block is not None
    data = json.loads(block[1])
    assert data["names"] == [*names, *synthetic.HOSTILE]
    assert data["classes"] == names
    assert page.count("<script") == 2
    assert "<img src=x" not in page
