"""The built site: complete, self-contained, right in a browser. `make docs` runs this file."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs
SITE = Path(os.environ.get("MACL_SITE", "")).absolute()
if not os.environ.get("MACL_SITE"):
    pytest.skip(
        "MACL_SITE names no built site: `make docs` builds it and runs this",
        allow_module_level=True,
    )
PAGES = sorted(
    path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if path.name != "404.html"
)


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    return Elements((SITE / page).read_text(encoding="utf-8")).found


def test_the_site_has_its_sections() -> None:
    sections = {page.split("/")[0] for page in PAGES}
    assert {
        "api",
        "howto",
        "methods",
        "results",
        "tutorials",
        "index.html",
        "start.html",
        "which.html",
    } <= sections


@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_nothing_from_elsewhere(page: str) -> None:
    for tag, given in elements(page):
        source = given.get("src") or (given.get("href") if tag == "link" else None) or ""
        if given.get("rel") not in ("canonical", "alternate"):
            assert not re.match(r"(https?:)?//", source), f"<{tag}> {source}"


@pytest.mark.parametrize("page", PAGES)
def test_every_picture_has_a_text(page: str) -> None:
    for tag, given in elements(page):
        if (
            tag == "img"
            and given.get("alt", None) in (None, "")
            and given.get("src", "").find("icon.svg") < 0
        ):
            pytest.fail(f"no alt text: {given.get('src')}")
        if tag == "figure" and given.get("role") == "img":
            assert len(given.get("aria-label") or "") > 20


@pytest.mark.parametrize("page", PAGES)
def test_formulas_are_drawn(page: str) -> None:
    text = (SITE / page).read_text(encoding="utf-8")
    assert r"\(" not in re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.S)
    assert "$$" not in re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.S)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_right_in_a_browser(browser: object, width: int, scheme: str) -> None:
    """From the folder: no console error, nothing requested from elsewhere, no horizontal scroll."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[attr-defined]
    page, wrong = context.new_page(), []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    failed = {}
    for name in PAGES if scheme == "light" else PAGES[::7]:
        page.goto((SITE / name).as_uri())
        if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
            wrong.append(f"{wide} px wide")
        if wrong:
            failed[name] = list(wrong)
            wrong.clear()
    context.close()
    assert not failed


def test_the_menu_leads_to_every_page(browser: object) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
    page = context.new_page()
    page.goto((SITE / "index.html").as_uri())
    seen = set()
    for tab in page.eval_on_selector_all(".md-tabs__link", "all => all.map(a => a.href)"):
        page.goto(tab)
        assert page.locator("h1").count() == 1, tab
        links = page.eval_on_selector_all(
            ".md-nav--primary a.md-nav__link[href]", "all => all.map(a => a.href)"
        )
        seen |= {link.split("#")[0] for link in links}
    context.close()
    missing = {(SITE / name).as_uri() for name in PAGES} - seen
    assert not missing


def test_search_finds_the_temperature(browser: object) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
    page = context.new_page()
    page.goto((SITE / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("temperature", delay=20)
    results = page.locator(".md-search-result__link")
    results.first.wait_for(timeout=20_000)
    assert results.count() > 3
    results.first.click()
    page.wait_for_load_state()
    assert "temperature" in page.inner_text("article").lower()
    context.close()
