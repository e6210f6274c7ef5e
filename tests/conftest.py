"""Shared set-up: every test finds the same machine, whatever else runs on it and whoever's shell started it.

Of the environment only what is needed to find programs stays; the home directory is an empty one, one thread keeps
runs repeatable, and the global generators start anew with every test.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# LD_PRELOAD may choose the kernels that multiply: the same here and in processes whose bytes are compared with ours.
KEPT = {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "USER", "LOGNAME", "SHELL"}
KEPT_PREFIXES = ("PYTHON", "PYTEST_", "VIRTUAL_ENV", "WALKBACK_NEEDS_")
DROPPED = {"PYTHONIOENCODING", "PYTHONWARNINGS"}  # what a process prints and warns of is compared

_home = tempfile.TemporaryDirectory(prefix="walkback-home-", ignore_cleanup_errors=True)


def memory_folder() -> str | None:
    """Return a folder kept in memory, where forcing a file to the disk costs nothing, if there is one with room."""
    folder = "/dev/shm"
    roomy = os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free > 4 * 2**30
    return folder if roomy else None


# pytest's own would clear away what a second pytest on this machine is using, and warn of what it finds in use.
_temporary = tempfile.TemporaryDirectory(prefix="wb-", dir=memory_folder(), ignore_cleanup_errors=True)


def set_environment() -> None:
    """Drop settings of Ray, Slurm, loggers, proxies, terminals, locales … that belong to whoever started the tests."""
    for name in set(os.environ) - KEPT:
        if name in DROPPED or not name.startswith(KEPT_PREFIXES):
            del os.environ[name]
    os.environ |= {
        "PYTEST_DEBUG_TEMPROOT": _temporary.name,
        "HOME": _home.name,  # no data sets, caches or settings of a user's
        "PYTHONUTF8": "1",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "COLUMNS": "80",
        "LINES": "25",
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",  # some virtual machines announce AMX and die of it, in bfloat16
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # read when ray is first imported, by whichever test that is
    }
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    given = [str(Path(path).absolute()) for path in given]  # also from other folders
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*given, *FOLDERS]))
    if "lo" in {name for _, name in socket.if_nameindex()}:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # else what the machine's name resolves to
    if hasattr(time, "tzset"):
        time.tzset()


sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from places import FOLDERS  # noqa: E402

sys.path += [folder for folder in FOLDERS if folder not in sys.path]  # here, and by PYTHONPATH in other processes
set_environment()  # before anything reads it

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

import seeding  # noqa: E402
import walkback as wb  # noqa: E402
from walkback.training import loop  # noqa: E402

torch.set_num_threads(1)
# The same examples each time, and none fails because the machine was busy while it was drawn or run.
busy = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "walkback", deadline=None, derandomize=True, database=None, suppress_health_check=busy
)
hypothesis.settings.load_profile("walkback")


collect_ignore_glob = ["helpers/*"]  # they have no examples, and one imports Lightning


def pytest_configure(config: pytest.Config) -> None:
    """Seed the examples in docstrings too: hooks in this file would hear of the tests below it alone."""
    config.pluginmanager.register(seeding)


# -- several processes ------------------------------------------------------------------------------------------------

# Each file is run by one process, so that shared fixtures are made once. Those that take long begin first.
LONG = (
    *("docs", "executor_slurm", "executor_ray", "training", "audit_local", "evidence", "device", "figures"),
    "audit_store",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files first, in the order of LONG."""
    rank = {f"test_{name}": i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish() -> None:
    """Set what was imported aside: collecting garbage, which many tests do, then looks at what they made alone."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def few_directions() -> Iterator[None]:
    """Let runs trained in this process end with small probes: 64 directions at every site are most of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "PROBES", (wb.Perturbation(count=4, samples=32), wb.Nudging(samples=32), "intrinsic"))
        yield
