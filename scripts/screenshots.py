"""The README's pictures: the page of results/runs as a browser shows it, and a real `walkback demo` in a terminal.

    python scripts/screenshots.py [--only page|terminal]

Needs chromium and chromedriver (`make browser`). The demo trains for less than a minute; everything else takes seconds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from selenium import webdriver

from walkback.audit.records import read_records
from walkback.replication.page import page_data, render

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "img"
# rich's own template without its web font: the picture loads nothing from elsewhere.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img"
aria-label="walkback demo in a terminal">
<style>.{unique_id}-matrix {{font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;}}
.{unique_id}-title {{font-size: 18px; font-weight: bold; font-family: sans-serif;}}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>{lines}</defs>
{chrome}<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def browser(profile: Path) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for switch in ("headless=new", "hide-scrollbars", "no-sandbox", "disable-dev-shm-usage"):
        options.add_argument(f"--{switch}")
    options.add_argument(f"--user-data-dir={profile}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def picture(driver: Any, url: str, path: Path, size: tuple[int, int], element: str | None = None) -> None:
    """Save what a window of this size shows; or, of a tall page, one element from its upper edge."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")
    driver.get(url)
    driver.execute_async_script("setTimeout(arguments[0], 800)")  # figures are drawn when their run is in view
    if element is not None:
        driver.execute_script("document.getElementById(arguments[0]).scrollIntoView()", element)
        driver.execute_async_script("setTimeout(arguments[0], 800)")
    driver.save_screenshot(str(path))


def page(folder: Path) -> None:
    """The verdict table, and one run that is walked back."""
    data = page_data(read_records(ROOT / "results" / "runs"))
    file = folder / "report.html"
    file.write_text(render(data), encoding="utf-8")
    run = next(r["id"] for r in data["runs"] if r["rule"] == "DFA" and r["verdict"]["word"] == "walked back")
    driver = browser(folder / "profile")
    try:
        picture(driver, file.as_uri(), OUT / "page-light.png", (1400, 970))
        picture(driver, f"{file.as_uri()}#{run}", OUT / "page-run.png", (1300, 1100), run)
    finally:
        driver.quit()


def terminal(_: Path) -> None:
    """What `walkback demo` prints."""
    command = [sys.executable, "-m", "walkback", "demo", "--out", "runs/demo"]  # trained once: `make demo` is the same
    printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = ["$ walkback demo", *printed.rstrip().splitlines()]
    console = Console(record=True, width=max(map(len, lines)) + 1, file=sys.stderr)
    for line in lines:
        console.print(Text(line))
    svg = console.export_svg(title="walkback demo", theme=MONOKAI, code_format=SVG, unique_id="demo")
    (OUT / "terminal.svg").write_text(svg, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["page", "terminal"])
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        for make in (page, terminal):
            if only in (None, make.__name__):
                make(Path(folder))


if __name__ == "__main__":
    main()
