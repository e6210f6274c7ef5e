"""How soon the page of 1,000 runs can be read, how large it is, and what it costs to make it from a store on disk.

Goals: `walkback report` within 20 s and 600 MiB, a file under 6 MB, painted and ready for input within two seconds,
everything else within one, "open all" too. Times in the browser are the best of three. Needs chromium and chromedriver
(`make browser`).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # for runs that nobody had to train

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from made_runs import EXPLODED, HEALTHY, write_run  # pyright: ignore[reportMissingImports]
from walkback.training.control import control_spec
from walkback.training.spec import RunSpec

RUNS, ROUNDS, GOAL, GOAL_THEN = 1000, 3, 2000.0, 1000.0
ACTIONS = {
    "filter by rule": "const s = document.getElementById('rule'); s.value = 'DFA'; "
    "s.dispatchEvent(new Event('change'));",
    "sort by accuracy": "document.querySelector('th[data-key=acc] button').click();",
    "open a run": "document.querySelector('.run:not([hidden]):not([open])').open = true;",
    "open all": "document.getElementById('reset').click(); document.getElementById('open').click();",
}
PAINT = "performance.getEntriesByName('first-contentful-paint')"
READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def browser(profile: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("not measured: no chromium (`make browser`)")
    for switch in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"user-data-dir={profile}"):
        options.add_argument(f"--{switch}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def fill_store(store: Path, count: int, epochs: int = 40) -> None:
    """Write finished runs of three rules and fifteen penalties, each with its control, as training leaves them."""
    draw = random.Random(0)

    def at(_: int) -> dict[str, Any]:
        grown = [h * (1 + 0.1 * draw.random()) for h in (10.0, 20.0, 30.0, 40.0, 50.0)]
        return {"h": grown, "cosine": [draw.random() for _ in grown], "acc": 0.3 + draw.random() / 100}

    specs = (
        RunSpec(rule=rule, epochs=epochs, seed=seed, penalty=penalty / 1000)
        for seed in range(count)
        for penalty in range(15)
        for rule in ("bp", "dfa", "fa")
    )
    pairs = (
        (one, EXPLODED if one.rule == "dfa" and one is spec else HEALTHY)
        for spec in specs
        for one in (spec, control_spec(spec))
    )
    written: set[str] = set()
    for spec, last in pairs:  # rules share the control of BP's stem
        if spec.name not in written:
            written.add(spec.name)
            write_run(store, spec, round(0.4 + 0.1 * draw.random(), 3), at=at, **last)
        if len(written) == count:
            return


def report(store: Path, out: Path) -> None:
    """Make the page as a user does, and print its time and memory."""
    command = [sys.executable, "-m", "walkback", "report", str(store), "--out", str(out)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
    print(f"report of {RUNS} runs: {seconds:.1f} s, {cpu:.1f} s of them computing (goal 20)")
    print(f"its memory: {used.ru_maxrss / 1024:.0f} MiB (goal 600)")
    print(f"its file: {out.stat().st_size / 1e6:.1f} MB (goal 6)")


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "report.html"
        fill_store(Path(folder) / "store", RUNS)
        report(Path(folder) / "store", path)
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
