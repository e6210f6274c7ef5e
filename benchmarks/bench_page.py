"""How soon the page of 500 runs can be read, and how long a reader then waits: milliseconds, the best of three.

Goal: painted and ready for input within two seconds, everything else within one. Needs chromium and chromedriver
(`make browser`).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # for runs that nobody had to train

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from made_store import many  # pyright: ignore[reportMissingImports]
from walkback.replication.page import page_data, render

RUNS, ROUNDS, GOAL, GOAL_THEN = 500, 3, 2000.0, 1000.0
ACTIONS = {
    "filter by rule": "const s = document.getElementById('rule'); s.value = 'DFA'; "
    "s.dispatchEvent(new Event('change'));",
    "sort by accuracy": "document.querySelector('th[data-key=acc] button').click();",
    "open a run": "document.querySelector('.run:not([hidden]):not([open])').open = true;",
}
PAINT = "performance.getEntriesByName('first-contentful-paint')"
READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def browser(profile: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("not measured: no chromium (`make browser`)")
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={profile}"):
        options.add_argument(f"--{switch}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "report.html"
        path.write_text(render(page_data(many(Path(folder), RUNS))), encoding="utf-8")
        print(f"a page of {RUNS} runs, {path.stat().st_size / 2**20:.1f} MiB")
        driver = browser(Path(folder) / "profile")
        try:
            times: dict[str, list[float]] = {"first paint": [], "ready for input": [], **{name: [] for name in ACTIONS}}
            for _ in range(ROUNDS):
                driver.get("about:blank")
                driver.get(path.as_uri())
                WebDriverWait(driver, 60).until(lambda b: b.execute_script(f"return {PAINT}.length"))
                times["first paint"].append(driver.execute_script(f"return {PAINT}[0].startTime"))
                times["ready for input"].append(driver.execute_script(f"return {READY}"))
                for name, action in ACTIONS.items():
                    laid_out = f"{action} document.body.offsetHeight;"
                    timed = f"const t = performance.now(); {laid_out} return performance.now() - t"
                    times[name].append(driver.execute_script(timed))
        finally:
            driver.quit()
    for name, taken in times.items():
        goal = GOAL_THEN if name in ACTIONS else GOAL
        print(f"{name:16} {min(taken):6.0f} ms (goal {goal:.0f})")


if __name__ == "__main__":
    main()
