"""Reports of real runs, opened in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import synthetic
import torch

import recipe_texts
import tiny
from macl.experiments import running
from macl.experiments.rows import tabulate
from macl.experiments.tables import write_tables
from macl.probes.score import Score
from macl.reporting import Projection
from macl.reporting.build import write_report
from macl.reporting.comparison import open_comparison
from macl.reporting.curves import training_curves
from macl.reporting.items import Looks, drawings, thumbnails
from macl.reporting.page import Picture, comparison_page, run_page
from macl.runs import Run
from macl.training.fit import train
from shared import trained

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,  # test_report_command.py and test_report_parts.py look at the text of pages
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
]

Page = Any
Open = Callable[..., Any]

SENTENCES = [
    f"The {animal} {verb} in the {place}."
    for animal in ("cat", "dog", "owl")
    for verb in ("sleeps", "hides", "waits")
    for place in ("barn", "garden", "tree")
]


@pytest.fixture(scope="module")
def open_page() -> Iterator[Open]:
    """Open a file; fails on errors in the console and on requests to a network."""
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--disable-component-update", "--disable-sync",
            ],
        )  # fmt: skip

        @contextmanager
        def opened(path: Path, **options: Any) -> Iterator[Page]:
            context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
            page = context.new_page()
            problems: list[str] = []
            page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("request", lambda r: problems.append(r.url) if _is_remote(r.url) else None)
            page.goto(path.as_uri())
            yield page
            assert page.evaluate("window.hacked") is None
            context.close()
            assert problems == []

        yield opened
        browser.close()


def _is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def reported(run: Run, output: Path, points: int = 150) -> Path:
    return write_report(run.folder, output, points=points, projection=Projection.PCA)[0]


@pytest.fixture(scope="module")
def image_run(place: Path) -> Run:
    run = trained(tiny.recipe(), place / "digits")
    run.record([Score("knn", "top1", 61.5, details={"k": 20})])
    return run


@pytest.fixture(scope="module")
def image_report(image_run: Run, place: Path) -> Path:
    return reported(image_run, place / "digits.html")


@pytest.fixture(scope="module")
def text_report(place: Path) -> Path:
    table = place / "animals.jsonl"
    rows = [{"text": sentence, "animal": sentence.split()[1]} for sentence in SENTENCES]
    rows += [{"text": hostile, "animal": hostile} for hostile in synthetic.HOSTILE for _ in "ab"]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = recipe_texts.load(
        "topics",
        [f"data.path={table}", f"data.test_path={table}", "data.label=animal", "epochs=1",
         "batch_size=8", "monitor_every=0"],
    )  # fmt: skip
    return reported(train(recipe, place / "text", compute=tiny.HERE), place / "text.html")


@pytest.fixture(scope="module")
def graph_report(place: Path) -> Path:
    recipe = recipe_texts.load("atlas", ["epochs=1", "encoder.hidden=8", "monitor_every=0"])
    return reported(train(recipe, place / "atlas", compute=tiny.HERE), place / "atlas.html", 80)


@pytest.fixture(scope="module")
def comparison(place: Path) -> Path:
    overrides = ["epochs=2", "schedule.warmup_epochs=0", "data.limit=120", "batch_size=32",
                 "encoder.width=8", "monitor_every=0", "evaluation.protocols=[knn]"]  # fmt: skip
    cells = recipe_texts.plan("digits", ["loss=nt-xent,macl"], 2, overrides, place / "comparison")
    running.run_cells(cells)
    write_tables(tabulate(cells), place / "comparison")
    return place / "comparison"


@pytest.fixture(scope="module")
def comparison_report(comparison: Path, place: Path) -> Path:
    return write_report(comparison, place / "comparison.html")[0]


def data_of(page: Page) -> dict[str, Any]:
    return json.loads(page.locator("#map-data").text_content())


def grid(page: Page, steps: int = 14) -> Iterator[tuple[float, float]]:
    """Places all over the map, in the page's coordinates."""
    page.locator("#canvas").scroll_into_view_if_needed()
    box = page.locator("#canvas").bounding_box()
    for row in range(1, steps):
        for column in range(1, steps):
            yield (
                box["x"] + box["width"] * column / steps,
                box["y"] + box["height"] * row / steps,
            )


def hover(page: Page) -> str:
    """Move about until an item shows; its caption."""
    for x, y in grid(page):
        page.mouse.move(x, y)
        if page.locator("#tooltip").is_visible():
            return str(page.locator("#tooltip .caption").text_content())
    raise AssertionError("no item under the pointer anywhere on the map")


def test_hovering_shows_the_picture(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        caption = hover(page)
        assert caption in data_of(page)["names"]
        thumb = page.locator("#tooltip .thumb")
        assert thumb.is_visible()
        assert thumb.get_attribute("src").startswith("data:image/png")
        assert thumb.evaluate("async e => (await e.decode(), e.naturalWidth)") == 8
        label = page.locator("#tooltip .label").text_content()
        number = data_of(page)["names"].index(caption)
        assert label == data_of(page)["classes"][data_of(page)["labels"][number]]


def test_hovering_shows_the_sentence(text_report: Path, open_page: Open) -> None:
    with open_page(text_report) as page:
        assert hover(page) in [*SENTENCES, *synthetic.HOSTILE]


def test_hovering_shows_the_drawing(graph_report: Path, open_page: Open) -> None:
    with open_page(graph_report) as page:
        assert re.fullmatch(r"atlas/\d+: \d nodes, \d+ edges", hover(page))
        drawing = page.locator("#tooltip .drawing")
        drawing.wait_for()
        assert drawing.evaluate("async e => (await e.decode(), e.naturalWidth > 0)")
        assert page.locator("#neighbors img.drawing").count() > 10


def test_the_page_shows_the_run(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        words = page.locator("body").inner_text()
        for expected in ("61.50", "Alignment A", "Temperature τ", "Gradient scale W̄",
                         "kNN accuracy", "macl diagnose", "uniformity", "tolerance"):  # fmt: skip
            assert expected in words
        page.locator("#recipe summary").click()
        assert "source: digits" in page.locator("#recipe pre").inner_text()
        assert page.locator("#neighbors .query").count() == 8


def test_charts_are_read_off_under_the_pointer(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        chart = page.locator("#curves .card").first
        chart.scroll_into_view_if_needed()
        box = chart.locator("svg").bounding_box()
        page.mouse.move(box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)
        readout = chart.locator(".readout").text_content()
        last = float(chart.locator("svg").get_attribute("aria-label").split()[-1].strip("."))
        assert readout.startswith("epoch 2: ")
        assert float(readout.split(": ")[1]) == pytest.approx(last, rel=0.02)


def test_the_keyboard_walks_the_map(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        page.locator("#canvas").focus()
        walked = []
        for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
            page.keyboard.press(key)
            assert page.locator("#tooltip").is_visible()
            walked.append(page.locator("#tooltip .caption").text_content())
        assert len(set(walked)) > 2
        assert walked[-1] in page.locator("#status").text_content()
        page.keyboard.press("Enter")
        assert page.locator("#panel li").count() == 6
        data = data_of(page)
        nearest = data["near"][data["names"].index(walked[-1])][0]
        first = page.locator("#panel li button").first
        assert first.get_attribute("aria-label").startswith(data["names"][nearest])
        first.press("Enter")
        assert page.locator("#tooltip .caption").text_content() == data["names"][nearest]
        page.locator("#canvas").focus()
        page.keyboard.press("Escape")
        assert page.locator("#tooltip").is_hidden()
        assert page.locator("#panel li").count() == 0


def test_zoom_keeps_items_under_the_pointer(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        page.get_by_role("button", name="Zoom in").click()
        assert hover(page) in data_of(page)["names"]
        assert "zoomed" in page.locator("#canvas").get_attribute("class")
        page.get_by_role("button", name="Show the whole map").click()
        assert "zoomed" not in page.locator("#canvas").get_attribute("class")


def test_searching_filters(text_report: Path, open_page: Open) -> None:
    with open_page(text_report) as page:
        total = len(data_of(page)["names"])
        page.locator("#search").fill("GARDEN")
        found = [sentence for sentence in SENTENCES if "garden" in sentence]
        assert page.locator("#status").text_content() == f"{len(found)} of {total} items"
        assert hover(page) in found
        seen = set()
        for _ in found:
            page.locator("#search").press("Enter")
            seen.add(page.locator("#tooltip .caption").text_content())
        assert seen == set(found)
        page.locator("#search").fill("no such words")
        assert page.locator("#status").text_content() == f"0 of {total} items"
        page.locator("#search").fill("")
        assert page.locator("#status").text_content() == ""


def test_the_legend_toggles_classes(image_report: Path, open_page: Open) -> None:
    with open_page(image_report) as page:
        data = data_of(page)
        buttons = page.locator("#legend button")
        assert buttons.count() == len(data["classes"])
        first, total = buttons.first, len(data["names"])
        rest = total - data["labels"].count(0)
        first.click()
        assert first.get_attribute("aria-pressed") == "false"
        assert page.locator("#status").text_content() == f"{rest} of {total} items"
        first.press("Space")
        assert first.get_attribute("aria-pressed") == "true"
        page.locator("#all").click()
        assert page.locator("#status").text_content() == f"0 of {total} items"
        page.locator("#all").click()
        assert page.locator("#status").text_content() == ""


def luminance(page: Page, selector: str, property: str) -> float:
    color = page.locator(selector).first.evaluate(f"e => getComputedStyle(e)['{property}']")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", color)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("which", ["image_report", "comparison_report"])
def test_dark_is_dark_and_paper_is_white(
    which: str, open_page: Open, request: pytest.FixtureRequest
) -> None:
    with open_page(request.getfixturevalue(which), color_scheme="dark") as page:
        assert luminance(page, "body", "background-color") < 0.1
        assert luminance(page, "body", "color") > 0.8
        assert luminance(page, ".chart .tick", "fill") > 0.5
        page.emulate_media(media="print", color_scheme="dark")
        assert luminance(page, "body", "background-color") == 1
        assert luminance(page, "body", "color") < 0.2
        assert page.locator("nav").is_hidden()


@pytest.mark.parametrize(
    "which", ["image_report", "text_report", "graph_report", "comparison_report"]
)
def test_a_phone_needs_no_sideways_scrolling(
    which: str, open_page: Open, request: pytest.FixtureRequest
) -> None:
    phone = {"viewport": {"width": 375, "height": 740}, "is_mobile": True, "has_touch": True}
    with open_page(request.getfixturevalue(which), **phone) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        if which == "image_report":
            for x, y in grid(page):
                page.touchscreen.tap(x, y)
                if page.locator("#panel li").count():
                    break
            assert page.locator("#panel li").count() == 6


def test_a_comparison_tells_its_verdicts(
    comparison: Path, comparison_report: Path, open_page: Open
) -> None:
    found = open_comparison(comparison)
    assert {name: len(runs) for name, runs in found.settings.items()} == {
        "loss=nt-xent": 2, "loss=macl": 2,
    }  # fmt: skip
    (score,) = (dots for dots in found.scores if dots.metric == "knn top1")
    (difference,) = [row.difference for row in score.rows if row.difference]
    with open_page(comparison_report) as page:
        words = page.locator("#results").inner_text().replace("−", "-")
        assert f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]" in words
        assert difference.verdict in words
        lines = page.locator("#curves .card").first.locator("polyline")
        assert lines.count() == 2
        assert page.locator("#curves .card").first.locator("polygon").count() == 2
        assert page.locator(".legend.lines li").all_inner_texts() == ["loss=nt-xent", "loss=macl"]


def test_nothing_that_a_user_names_runs(image_run: Run, place: Path, open_page: Open) -> None:
    """Names, labels, scores, the recipe, the diagnosis and a drawing, all of them hostile."""
    folder = place / "hostile"
    script = synthetic.HOSTILE[0]
    recipe = tiny.recipe().model_copy(update={"name": script, "description": script})
    run = Run.create(folder, recipe)
    shutil.copy(image_run.metrics_file, folder)
    run.record([Score(script, script, 1.0, task=script, details={script: script})])
    finding = {"name": script, "verdict": "problem", "words": script, "evidence": {}}
    advice = {"change": script, "reason": script, "evidence": {}}
    diagnosis = {"findings": [finding], "advice": [advice], "notes": [script]}
    (folder / "diagnosis.json").write_text(json.dumps(diagnosis))
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>parent.hacked = 1</script></svg>'
    names = [*synthetic.HOSTILE] * 8
    found = synthetic.embedding_map(names, synthetic.HOSTILE)
    picture = Picture(found, Looks(names, drawings([svg] * len(names)), "drawing"))
    page_file = place / "hostile.html"
    page_file.write_text(
        run_page(run, training_curves({"run": [run]}), picture, ""), encoding="utf-8"
    )
    with open_page(page_file) as page:
        assert hover(page) in synthetic.HOSTILE
        page.locator("#canvas").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.locator("#search").fill("onerror")
        page.locator("#legend button").first.click()
        assert script in page.locator("#diagnosis").inner_text()
        assert page.locator("h1").inner_text() == script


def test_a_hostile_setting_does_not_run(comparison: Path, place: Path, open_page: Open) -> None:
    found = open_comparison(comparison)
    script = synthetic.HOSTILE[1]
    found.settings[script] = found.settings.pop("loss=macl")
    found.rows[-1].setting["loss"] = script
    page_file = place / "hostile-comparison.html"
    page_file.write_text(comparison_page(found, training_curves(found.settings)), "utf-8")
    with open_page(page_file) as page:
        assert script in page.locator(".legend.lines").inner_text()


def test_ten_thousand_pictures_fit_and_answer(image_run: Run, place: Path, open_page: Open) -> None:
    """Noise, which compresses worst, in 60 classes."""
    count = 10_000
    names = [f"test/{number:06d}" for number in range(count)]
    noise = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    found = synthetic.embedding_map(names, [f"class {number}" for number in range(60)])
    pictures = thumbnails(noise[number % 64] for number in range(count))
    page_file = place / "many.html"
    page = run_page(image_run, [], Picture(found, Looks(names, *pictures)), "")
    page_file.write_text(page, encoding="utf-8")
    assert page_file.stat().st_size < 15_000_000
    with open_page(page_file) as page:
        assert hover(page) in names
        page.locator("#search").fill("test/00012")
        assert page.locator("#status").text_content() == "10 of 10,000 items"
        page.locator("#search").press("Enter")
        assert page.locator("#tooltip .caption").text_content().startswith("test/00012")
