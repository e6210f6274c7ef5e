"""The page in a real browser, Debian's chromium without a window: it works, asks the network for nothing, stays light.

Without a browser these tests are skipped, unless WALKBACK_NEEDS_BROWSER is set; `make browser` installs one.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from made_store import ATTACK, BP, DFA, FA, NOTE, OTHER, build, many, replace_slash
from patience import PATIENCE
from walkback.audit.records import read_records
from walkback.replication.page import page, page_data, render
from walkback.report.report import Report
from walkback.report.view import layer_rows
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

FOUND = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
if not all(FOUND.values()) and not os.environ.get("WALKBACK_NEEDS_BROWSER"):
    pytest.skip(
        "the page is not tested in a browser: needs chromium and chromedriver (Debian: chromium chromium-driver)",
        allow_module_level=True,
    )

WIDE, PHONE = (1400, 900), (390, 800)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    assert all(FOUND.values()), f"WALKBACK_NEEDS_BROWSER is set, `make browser` installs it, but found {FOUND}"
    options = webdriver.ChromeOptions()
    options.binary_location = FOUND["chromium"]
    folder = tmp_path_factory.mktemp("profile")
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={folder}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = started(options, {**os.environ, "FONTCONFIG_FILE": str(one_font(tmp_path_factory.mktemp("fonts")))})
    driver.set_script_timeout(PATIENCE)
    driver.set_page_load_timeout(PATIENCE)
    driver.command_executor.client_config.timeout = PATIENCE
    yield driver
    driver.quit()


def started(options: Any, env: dict[str, str], tries: int = 3) -> Any:
    """The browser; another program may take the port of its driver between it is found free and used."""
    try:
        return webdriver.Chrome(options=options, service=webdriver.ChromeService(FOUND["chromedriver"], env=env))
    except WebDriverException:
        if tries == 1:
            raise
    return started(options, env, tries - 1)


def one_font(folder: Path) -> Path:
    """Widths of text depend on the fonts of a machine: here there is one, which comes with matplotlib."""
    config = folder / "fonts.conf"
    config.write_text(
        f"<fontconfig><dir>{matplotlib.get_data_path()}/fonts/ttf</dir><cachedir>{folder}</cachedir></fontconfig>"
    )
    return config


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def file(store, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(read_records(store)), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, file) -> Callable[..., Any]:
    """Open the page anew, at a run if one is named; with every console message so far thrown away."""

    def go(spec: RunSpec | None = None, size: tuple[int, int] = WIDE, scheme: str = "light") -> Any:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        browser.get("about:blank")
        for kind in ("browser", "performance"):
            browser.get_log(kind)
        browser.get(file.as_uri() + ("" if spec is None else f"#{identity(spec)}"))
        if spec is not None:
            wait(browser, f"document.querySelector('#{identity(spec)} .body').firstChild !== null")
        return browser

    return go


def identity(spec: RunSpec) -> str:
    return f"run-{spec.digest}"


def wait(browser: Any, condition: str) -> Any:
    """Until a line of JavaScript is true."""
    return WebDriverWait(browser, PATIENCE).until(lambda b: b.execute_script(f"return {condition}"), condition)


def section(browser: Any, spec: RunSpec) -> Any:
    return browser.find_element(By.ID, identity(spec))


def draw_all(browser: Any, spec: RunSpec) -> list[dict[str, Any]]:
    """Scroll past every figure of an open run; what plotly.js then holds of each: its traces and shapes."""
    plots = f"[...document.querySelectorAll('#{identity(spec)} .plot')]"
    for i in range(browser.execute_script(f"return {plots}.length")):
        browser.execute_script(f"{plots}[{i}].scrollIntoView({{block: 'center'}})")
        wait(browser, f"{plots}[{i}].drawn === true && {plots}[{i}].querySelector('.main-svg') !== null")
    return browser.execute_script(
        f"return {plots}.map(p => ({{label: p.getAttribute('aria-label'), title: p.panel.title, "
        "shapes: p.layout.shapes, data: p.data.map(t => ({name: t.name, x: t.x, y: t.y}))}))"
    )


def shown(browser: Any, selector: str) -> list[Any]:
    return [e for e in browser.find_elements(By.CSS_SELECTOR, selector) if e.is_displayed()]


def rules(browser: Any) -> list[str]:
    return [row.get_attribute("data-rule") for row in shown(browser, "#table tbody tr")]


def head(browser: Any, key: str) -> Any:
    return browser.find_element(By.CSS_SELECTOR, f"th[data-key={key}]")


OURS = OTHER.rule.replace("/", "")

# -- it loads ------------------------------------------------------------------------------------------------------


def test_no_console_message_and_no_request(opened, file):
    """The page, an opened run, all its figures: the only thing asked for is the file itself."""
    browser = opened(DFA)
    assert len(draw_all(browser, DFA)) == 8
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert file.as_uri() in {url.partition("#")[0] for url in asked}
    assert {url.partition("#")[0] for url in asked if not url.startswith(("data:", "blob:"))} == {file.as_uri()}
    assert not any(m["method"] == "Network.webSocketCreated" for m in messages)


def test_a_request_would_be_refused(opened):
    """The page's own policy, whatever finds its way into it."""
    browser = opened()
    browser.execute_script("const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);")
    WebDriverWait(browser, PATIENCE).until(lambda b: "Content Security Policy" in str(b.get_log("browser")))


def test_no_figure_offers_to_send_its_data_away(opened):
    browser = opened(DFA)
    draw_all(browser, DFA)
    buttons = browser.execute_script("return [...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
    assert set(buttons) == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_text_of_runs_is_shown_not_run(opened):
    spec = replace_slash(OTHER)
    browser = opened(spec)
    body = section(browser, spec).text
    assert " ".join(NOTE.split()) in " ".join(body.split())
    assert spec.name in body
    assert f"cross-entropy {ATTACK}" in body
    assert (
        f"half {ATTACK.replace('/', ' ')}" in browser.find_element(By.ID, "problems").find_element(By.XPATH, "..").text
    )
    assert browser.execute_script("return window.hacked === undefined")
    assert browser.get_log("browser") == []


# -- table ---------------------------------------------------------------------------------------------------------


def test_the_table_sorts_both_ways_with_the_unknown_last(opened):
    browser = opened()
    assert rules(browser) == ["BP", "FA", "DFA", OURS]
    for key, up, unknown in (
        ("d2", ["DFA", "FA", OURS, "BP"], 0),
        ("d3", ["DFA", "BP"], 2),
        ("acc", ["DFA", "FA", OURS, "BP"], 0),
    ):
        for direction, expected in (("ascending", up), ("descending", up[::-1])):
            head(browser, key).find_element(By.TAG_NAME, "button").click()
            assert head(browser, key).get_attribute("aria-sort") == direction
            assert rules(browser)[: 4 - unknown] == expected
    assert len(browser.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_filters_hold_for_table_and_runs(opened):
    browser = opened()
    Select(browser.find_element(By.ID, "rule")).select_by_visible_text("DFA")
    assert rules(browser) == ["DFA"]
    assert len(shown(browser, ".run")) == 3  # two seeds and a control
    Select(browser.find_element(By.ID, "verdict")).select_by_visible_text("control")
    assert (rules(browser), len(shown(browser, ".run"))) == ([], 1)
    assert browser.find_element(By.ID, "status").text == "0 of 4 settings and 1 of 9 runs shown."
    browser.find_element(By.ID, "reset").click()
    assert len(rules(browser)) == 4
    Select(browser.find_element(By.ID, "setting")).select_by_visible_text(
        "resmlp · cifar10 · lr 0.008 · 12 epochs · plain"
    )
    assert (rules(browser), len(shown(browser, ".run"))) == ([OURS], 1)


def test_the_table_downloads_as_it_is_shown(opened, tmp_path, store):
    browser = opened()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    head(browser, "acc").find_element(By.TAG_NAME, "button").click()
    Select(browser.find_element(By.ID, "verdict")).select_by_visible_text("undecided")
    for button in ("csv", "latex"):
        browser.find_element(By.ID, button).click()
    paths = [tmp_path / "verdicts.csv", tmp_path / "verdicts.tex"]
    WebDriverWait(browser, PATIENCE).until(lambda _: all(p.exists() and p.stat().st_size for p in paths))
    with paths[0].open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [r["rule"] for r in rows] == rules(browser) == ["FA", OURS]
    accuracy = [json.loads((store / run.name / "report.json").read_text())["headline_acc"] for run in (FA,)]
    assert float(rows[0]["acc_mean"]) == accuracy[0]
    body = paths[1].read_text(encoding="utf-8").partition("\\endfoot\n")[2].partition("\n\\end{longtable}\n")[0]
    latex = [line.strip().removeprefix("{}").partition(" & ")[0] for line in body.split("\n")]
    assert (latex[0], latex[1].partition(":")[0], latex[2:]) == ("FA", "mine", [])


def test_the_first_screen_has_the_findings_the_picture_and_the_rule(opened):
    browser = opened()
    assert len(shown(browser, ".findings li")) == 3
    assert [row.text.split()[0] for row in shown(browser, ".pair tbody tr")] == ["BP", "DFA"]
    assert len(shown(browser, ".pair svg circle")) == 6
    bottom = browser.execute_script("return document.querySelector('.decides').getBoundingClientRect().bottom")
    assert bottom < WIDE[1]
    hover = browser.find_element(By.CSS_SELECTOR, ".decides abbr").get_attribute("title")
    assert hover.startswith("scale stability")


def test_the_head_of_the_table_stays_in_sight(opened):
    browser = opened(size=(1400, 500))
    browser.execute_script("document.querySelector('#table tbody tr:last-child').scrollIntoView()")
    top = "document.querySelector('#table thead th').getBoundingClientRect().top"
    wait(browser, f"scrollY > 0 && {top} >= -1 && {top} < 500")
    rows = browser.execute_script("return document.querySelector('#table tbody').getBoundingClientRect().top")
    assert rows < 0, "the first rows are out of sight, their head is not"


def test_filters_sort_and_axes_stand_in_the_address(opened, browser, file):
    opened()
    Select(browser.find_element(By.ID, "rule")).select_by_visible_text("DFA")
    Select(browser.find_element(By.ID, "y")).select_by_value("gamma")
    head(browser, "acc").find_element(By.TAG_NAME, "button").click()
    address = browser.current_url
    assert address == f"{file.as_uri()}?rule=DFA&y=gamma&sort=acc"
    browser.get("about:blank")
    browser.get(f"{address}-down")
    assert rules(browser) == ["DFA"]
    assert browser.find_element(By.ID, "y").get_attribute("value") == "gamma"
    assert head(browser, "acc").get_attribute("aria-sort") == "descending"
    browser.find_element(By.ID, "reset").click()
    assert len(rules(browser)) == 4
    assert browser.current_url == f"{file.as_uri()}?y=gamma&sort=acc-down"
    browser.get(f"{file.as_uri()}?rule=nobody&sort=nothing")
    assert len(rules(browser)) == 4


def test_details_of_a_setting_on_demand(opened):
    browser = opened()
    cell = browser.find_element(By.CSS_SELECTOR, "#table tbody tr[data-rule=DFA] .why")
    assert "above 50" not in cell.text
    cell.find_element(By.TAG_NAME, "summary").click()
    for said in (
        "to do D3: Report the frozen control",
        "4× above 50",
        "25× below 1e−7",
        "four-diagnostic: walked back",
    ):
        assert said in cell.text
    link = cell.find_element(By.CSS_SELECTOR, "a")
    link.click()
    wait(browser, f"document.getElementById('{identity(DFA)}').open")


def test_chosen_runs_are_drawn_over_each_other_on_axes_of_choice(opened, store):
    browser = opened()

    def drawn() -> list[dict[str, Any]]:
        browser.find_element(By.ID, "overlay").click()
        wait(browser, "document.querySelector('#chart .plot')?.drawn === true")
        return browser.execute_script(
            "const p = document.querySelector('#chart .plot');"
            "return p.data.map(t => ({name: t.name, x: t.x, y: t.y, log: [p.layout.xaxis.type, p.layout.yaxis.type]}))"
        )

    for spec in (BP, DFA):
        section(browser, spec).find_element(By.CSS_SELECTOR, ".pick").click()
        assert not section(browser, spec).get_attribute("open"), "choosing a run does not open it"
    found = {t["name"]: t for t in drawn()}
    assert set(found) == {"BP", "DFA"}
    rows = [json.loads(line) for line in (store / DFA.name / "trajectory.jsonl").read_text().splitlines()]
    assert found["DFA"]["y"][1:] == [r["test_acc"] for r in rows]
    Select(browser.find_element(By.ID, "x")).select_by_value("gamma")
    Select(browser.find_element(By.ID, "y")).select_by_value("h_norm")
    found = {t["name"]: t for t in drawn()}
    assert found["DFA"]["x"][1:] == [r["values"]["gamma"] for r in rows]
    assert found["DFA"]["y"][1:] == [r["per_layer"]["h_norm"][-1] for r in rows]
    assert found["DFA"]["log"] == ["linear", "log"]
    Select(browser.find_element(By.ID, "x")).select_by_value("site")
    Select(browser.find_element(By.ID, "y")).select_by_value("cosine")
    saved = Report.load(store / DFA.name / "report.json")
    assert {t["name"]: t["y"] for t in drawn()}["DFA"] == saved.per_layer["cosine"]
    browser.find_element(By.ID, "clear").click()
    assert not shown(browser, ".pick:checked")
    assert len(drawn()) == 9, "without a choice all that are shown"
    assert browser.get_log("browser") == []


# -- runs ----------------------------------------------------------------------------------------------------------


def test_a_link_opens_its_run(opened, file):
    browser = opened(FA)
    assert section(browser, FA).get_attribute("open")
    assert len(shown(browser, ".run[open]")) == 1
    assert wait(
        browser, f"Math.abs(document.getElementById('{identity(FA)}').getBoundingClientRect().top) < innerHeight"
    )
    wait(browser, f"document.querySelector('#{identity(FA)} .body').firstChild !== null")
    assert "its frozen control is not in the store" in section(browser, FA).text
    # From the page: a seed in the table, then the run's control.
    more = browser.find_element(By.CSS_SELECTOR, "#table tbody tr[data-rule=DFA] .why summary")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", more)
    more.click()
    browser.find_element(By.CSS_SELECTOR, f"#table a[href='#{identity(DFA)}']").click()
    wait(browser, f"document.getElementById('{identity(DFA)}').open")
    assert browser.current_url == f"{file.as_uri()}#{identity(DFA)}"


def test_a_link_to_a_filtered_run_shows_it_and_an_unknown_one_is_said(opened):
    browser = opened()
    Select(browser.find_element(By.ID, "rule")).select_by_visible_text("BP")
    browser.execute_script(f"location.hash = '{identity(DFA)}'")
    wait(browser, f"document.getElementById('{identity(DFA)}').open")
    assert section(browser, DFA).is_displayed()
    browser.execute_script("location.hash = 'run-none'")
    wait(browser, "document.getElementById('status').textContent === 'There is no run run-none on this page.'")


def test_values_on_the_page_are_those_of_the_files(opened, store):
    browser = opened(DFA)
    saved = Report.load(store / DFA.name / "report.json")
    figures = {f["title"]: f for f in draw_all(browser, DFA)}
    for title, key in (("‖h‖ by site", "h_norm"), ("‖g‖ by site", "g_norm"), ("cosine by site", "cosine")):
        assert figures[title]["data"][0]["y"] == saved.per_layer[key]
    assert figures["‖h‖ by site"]["data"][1]["y"] == [50.0 * (h or 0) for h in (saved.per_layer["h_norm"] or [])[:-1]]
    assert figures["‖g‖ by site"]["data"][1]["y"] == [1e-7] * 5
    rows = [saved.run["initial"]]
    rows += [json.loads(line) for line in (store / DFA.name / "trajectory.jsonl").read_text().splitlines()]
    assert figures["‖h_L‖"]["data"][0]["y"] == [r["per_layer"]["h_norm"][-1] for r in rows]
    assert figures["growth ρ"]["data"][0]["y"] == [r["values"]["growth"] for r in rows]
    assert figures["test accuracy"]["data"][0]["y"] == [r["test_acc"] for r in rows]
    assert [s["x0"] for s in figures["‖g_L‖"]["shapes"]] == [4, 7]
    assert figures["Γ by order of averaging"]["data"][0]["x"] == list(saved.aggregates.values())
    body = section(browser, DFA)
    cells = [row.text.split() for row in body.find_elements(By.CSS_SELECTOR, ".numbers tbody tr")]
    expected = layer_rows(saved)[1]
    assert cells[: len(expected)] == [" ".join(row).split() for row in expected]
    assert "D1 first flags at epoch 4, D2 first flags at epoch 7 (12 epochs" in body.text
    assert "accuracy 0.306" in body.text
    table = browser.find_element(By.CSS_SELECTOR, "#table tbody tr[data-rule=DFA]").text
    for said in ("200 ± 0", "4e-9", "-4.4 pp [-5.8, -3.0]", "0.311 ± 0.007", "+0.105 ± 0.000", "0.350"):
        assert said in table


def test_every_epoch_can_be_read_as_a_table(opened, store):
    browser = opened(BP)
    box = section(browser, BP).find_element(By.CSS_SELECTOR, ".body details")
    box.find_element(By.TAG_NAME, "summary").click()
    wait(browser, f"document.querySelector('#{identity(BP)} .epochs tbody') !== null")
    rows = box.find_elements(By.CSS_SELECTOR, ".epochs tbody tr")
    assert len(rows) == BP.epochs + 1
    last = json.loads((store / BP.name / "trajectory.jsonl").read_text().splitlines()[-1])
    assert [float(cell) for cell in rows[-1].text.split()[:4]] == [
        BP.epochs,
        last["test_acc"],
        last["per_layer"]["h_norm"][-1],
        last["per_layer"]["g_norm"][-1],
    ]


def test_every_figure_has_a_text_and_the_null_band_is_drawn_where_there_is_one(opened):
    browser = opened(BP)
    figures = draw_all(browser, BP)
    assert all(len(f["label"]) > 20 for f in figures)
    cosine = next(f for f in figures if f["title"] == "cosine by site")
    assert [t["name"] for t in cosine["data"]][:3] == ["null band", "null band", "cosine"]
    assert "Null band not measured" not in section(browser, BP).text
    assert cosine["label"].endswith("Band of the null by site: " + ", ".join(["-0.1 to 0.1"] * 5) + ".")
    browser.execute_script(f"location.hash = '{identity(DFA)}'")
    wait(browser, f"document.querySelector('#{identity(DFA)} .body').firstChild !== null")
    assert "Null band not measured" in section(browser, DFA).text


def test_figures_answer_to_the_mouse(opened):
    """Hovering shows the number, dragging zooms."""
    browser = opened(DFA)
    draw_all(browser, DFA)
    plot = section(browser, DFA).find_element(By.CSS_SELECTOR, ".plot .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    hover = f"document.querySelector('#{identity(DFA)} .plot .hoverlayer').textContent"

    def shows_the_number(_: Any) -> bool:  # the pointer moves on until it does: one move may come too early
        ActionChains(browser).move_to_element_with_offset(plot, 3, 0).move_to_element(plot).perform()
        return "2.000e+6" in browser.execute_script(f"return {hover}")

    WebDriverWait(browser, PATIENCE).until(shows_the_number)
    seen = f"document.querySelector('#{identity(DFA)} .plot').layout.xaxis.range[0]"
    start = browser.execute_script(f"return {seen}")
    ActionChains(browser).move_to_element(plot).click_and_hold().move_by_offset(60, 30).release().perform()
    wait(browser, f"{seen} > {start} + 0.5")


def test_a_control_claims_nothing(opened):
    browser = opened(control_spec(BP))
    text = section(browser, control_spec(BP)).text
    assert "A frozen control" in text
    assert "Walk-back chain" not in text


# -- for everybody -------------------------------------------------------------------------------------------------


def test_the_keyboard_is_enough(opened):
    browser = opened()
    active = browser.switch_to.active_element
    seen = []
    for _ in range(60):
        active.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        seen.append((active.tag_name, active.get_attribute("id") or active.text))
        if active.tag_name == "summary" and active.find_element(By.XPATH, "..").get_attribute("class") == "run":
            break
    assert ("a", "Skip to the verdicts") in seen
    assert {"theme", "rule", "setting", "verdict", "reset", "csv", "latex", "x", "y", "overlay", "open"} <= {
        name for _, name in seen
    }
    assert sum(tag == "button" for tag, _ in seen) >= 14  # the heads of the table too
    assert ("summary", "details") in seen
    assert ("abbr", "D1") in seen, "definitions can be reached"
    assert browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"
    active.send_keys(Keys.ENTER)
    wait(browser, "document.querySelector('.run').open")
    button = head(browser, "acc").find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    assert head(browser, "acc").get_attribute("aria-sort") == "ascending"


def test_a_phone_needs_no_sideways_scrolling(opened):
    browser = opened(DFA, PHONE)
    draw_all(browser, DFA)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
    label = browser.execute_script("return getComputedStyle(document.querySelector('#table td'), '::before').content")
    assert label == '"Setting"'


def test_a_table_that_is_wider_than_a_phone_says_so(opened):
    """A word above it, and an edge that fades until the end is reached; neither where all of it is seen."""
    browser = opened(DFA, PHONE)
    box = f"document.querySelector('#{identity(DFA)} .numbers').parentNode"
    wait(browser, f"{box}.classList.contains('more')")
    cue = browser.execute_script(f"return {box}.previousSibling")
    assert (cue.text, cue.is_displayed()) == ("scroll →", True)
    assert "gradient" in browser.execute_script(f"return getComputedStyle({box}).maskImage")
    browser.execute_script(f"{box}.scrollLeft = 9999")
    wait(browser, f"!{box}.classList.contains('more')")
    browser = opened(DFA)
    wait(browser, f"{box}.clientWidth > 0")
    assert not browser.execute_script(f"return {box}.previousSibling").is_displayed()


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_the_toolbar_covers_no_legend_and_labels_keep_apart(opened, size):
    browser = opened(DFA, size)
    draw_all(browser, DFA)
    boxes = browser.execute_script(
        "const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };"
        f"return [...document.querySelectorAll('#{identity(DFA)} .plot')].map(p => ({{title: p.panel.title, "
        "bar: box(p.querySelector('.modebar')), legend: [...p.querySelectorAll('.legend .bg')].map(box), "
        "inside: box(p), labels: [...p.querySelectorAll('.ytick text')].map(box)}))"
    )
    assert sum(len(b["legend"]) for b in boxes) >= 4
    for b in boxes:
        for legend in b["legend"]:
            assert not overlap(b["bar"], legend), b["title"]
            assert b["inside"][1] <= legend[1] < legend[3] <= b["inside"][3] + 1, b["title"]
        assert not any(overlap(x, y) for x, y in combinations(b["labels"], 2)), b["title"]


def test_an_axis_of_about_a_decade_is_not_crowded(opened):
    browser = opened(DFA, PHONE)
    draw_all(browser, DFA)
    plot = f"document.querySelector('#{identity(DFA)} .plot')"
    browser.execute_script(f"{plot}.panel.traces = [{{...{plot}.panel.traces[0], y: [11, 20, 60, 145, 150]}}]")
    browser.find_element(By.ID, "theme").click()  # draws anew
    wait(browser, f"{plot}.data.length === 1")
    labels = browser.execute_script(f"return [...{plot}.querySelectorAll('.ytick text')].map(t => t.textContent)")
    assert [label.replace("\u200b", "") for label in labels] == ["10", "2", "5", "102"], "10² at the top"


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("width", [1280, 1000, 700])
def test_the_downloads_stay_together(opened, width):
    browser = opened(size=(width, 900))
    tops = browser.execute_script(
        "return ['csv', 'latex'].map(i => document.getElementById(i).getBoundingClientRect().top)"
    )
    assert tops[0] == tops[1]


def test_a_verdict_without_depth_says_so_where_it_is_read(opened):
    browser = opened()
    for place in ("#table tbody tr[data-rule=FA] strong", f"#{identity(FA)} .what"):
        text = browser.find_element(By.CSS_SELECTOR, place).text
        assert " ".join(text.split()) == "≈ undecided (depth not tested)"
    assert "depth" not in browser.find_element(By.CSS_SELECTOR, "#table tbody tr[data-rule=BP] strong").text


def test_dark_and_light(opened):
    def paper() -> str:
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    browser = opened(DFA, scheme="dark")
    draw_all(browser, DFA)
    dark = paper()
    colour = f"document.querySelector('#{identity(DFA)} .plot').data[0].line.color"
    drawn = browser.execute_script(f"return {colour}")
    toggle = browser.find_element(By.ID, "theme")
    assert toggle.text == "Light"
    toggle.click()
    assert (toggle.text, paper()) == ("Dark", "rgb(255, 255, 255)")
    assert dark != paper()
    assert browser.execute_script(f"return {colour}") != drawn


def test_it_prints_the_table_and_the_open_run(opened):
    browser = opened(DFA, scheme="dark")
    wait(browser, f"[...document.querySelectorAll('#{identity(DFA)} .plot')].some(p => p.drawn)")
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") <= 8
    # All figures were drawn for it, without being scrolled to, and the page is dark again.
    plots = f"[...document.querySelectorAll('#{identity(DFA)} .plot')]"
    assert browser.execute_script(f"return {plots}.every(p => p.drawn)")
    wait(browser, "document.documentElement.dataset.theme === undefined")


# -- many runs -----------------------------------------------------------------------------------------------------


def test_a_card_keeps_its_columns_under_the_styles_of_jupyterlab(browser, store, tmp_path):
    report = next(iter(read_records(store).runs)).report
    lab = ":not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon"
    styles = f"{lab} td, {lab} th {{ text-align: right; vertical-align: middle; }}"
    card = tmp_path / "card.html"
    inside = f'<div class="jp-RenderedHTMLCommon">{report._repr_html_()}<table><td id="theirs">1</td></table></div>'
    card.write_text(f"<!doctype html><meta charset=utf-8><style>{styles}</style>{inside}", encoding="utf-8")
    browser.get(card.as_uri())

    def aligned(selector: str) -> str:
        return browser.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).textAlign")

    assert aligned("#theirs") == "right"
    assert aligned(".walkback td") == aligned(".walkback th") == "left"
    assert aligned(".walkback .numbers td:last-child") == "right"


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    data = page_data(many(folder, 500))
    path = folder / "report.html"
    path.write_text(render(data), encoding="utf-8")
    return path


def test_of_five_hundred_runs_only_what_is_looked_at_is_drawn(browser, large):
    """How long it takes is printed by `make bench`; that it can't grow with what nobody looks at is tested here."""
    browser.get("about:blank")
    browser.get(large.as_uri())

    def count(expression: str) -> int:
        return browser.execute_script(f"return {expression}")

    def changed(action: str) -> list[int]:
        """How many attributes were set, and nodes put in or moved, by one action of the reader's."""
        return browser.execute_script(
            "const seen = new MutationObserver(() => {});"
            "seen.observe(document.body, {attributes: true, childList: true, subtree: true});"
            f"{action} const records = seen.takeRecords(); seen.disconnect();"
            "return [records.filter(r => r.type === 'attributes').length,"
            " records.reduce((sum, r) => sum + r.addedNodes.length, 0)];"
        )

    every = "document.querySelectorAll"
    assert count(f"{every}('.run').length") == 500
    rows = count(f"{every}('#table tbody tr').length")
    assert 0 < rows <= 500
    assert count(f"{every}('.run .body > *').length") == count(f"{every}('.plot').length") == 0
    assert count("window.Plotly === undefined"), "a script of a megabyte, for figures that nobody has seen"
    assert count(f"{every}('.run *').length") <= 500 * 10
    attributes, nodes = changed(
        "const s = document.getElementById('rule'); s.value = 'DFA'; s.dispatchEvent(new Event('change'));"
    )
    assert 0 < attributes <= rows + 500
    assert nodes <= 1, "the line that says how many are shown"
    attributes, nodes = changed("document.querySelector('th[data-key=acc] button').click();")
    assert (attributes <= 2, nodes) == (True, rows), "each row is moved once"
    browser.execute_script(
        "const run = document.querySelector('.run:not([hidden]):not([open])'); run.open = true; run.scrollIntoView();"
    )
    wait(browser, f"{every}('.run .body > *').length > 0")
    assert count(f"[...{every}('.run .body')].filter(b => b.firstChild).length") == 1
    assert count(f"{every}('.run .plot').length") <= 8
    # All of them opened: only those in sight are filled.
    browser.execute_script("document.getElementById('reset').click(); document.getElementById('open').click();")
    assert count(f"{every}('.run[open]').length") == 500
    wait(browser, f"[...{every}('.run .body')].filter(b => b.firstChild).length > 1")
    assert count(f"[...{every}('.run .body')].filter(b => b.firstChild).length") < 20
    last = "[...document.querySelectorAll('.run')].at(-1)"
    browser.execute_script(f"{last}.scrollIntoView()")
    wait(browser, f"{last}.querySelector('.body').firstChild !== null")
