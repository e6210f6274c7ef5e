# Each target does its own set-up: a virtual environment in .venv with pinned versions.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test browser latex lint bench evidence clean

demo: $(STAMP)
	$(BIN)/walkback doctor
	$(BIN)/walkback demo --out runs/demo

test: lint
	$(BIN)/python -m pytest -n 2

# The page is tested in a real browser: installed where we may, else its tests are skipped, unless WALKBACK_NEEDS_BROWSER is set.
browser:
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; \
	  fi; \
	  command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	    echo "No browser: the page's browser tests need chromium and chromedriver (Debian: chromium chromium-driver)."; \
	fi

# Tables are compiled by pdflatex: installed where we may (48 MB), else that test is skipped.
latex:
	@if ! command -v pdflatex >/dev/null || ! kpsewhich booktabs.sty >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq \
	      --no-install-recommends texlive-latex-base texlive-latex-recommended; \
	  fi; \
	  command -v pdflatex >/dev/null || \
	    echo "No LaTeX: the tables' test needs pdflatex (Debian: texlive-latex-base texlive-latex-recommended)."; \
	fi

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)
	$(BIN)/python benchmarks/bench_diagnose.py
	$(BIN)/python benchmarks/bench_depth.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_audit.py

evidence: $(STAMP)
	$(BIN)/walkback evidence all --from results --out results/tables
	$(BIN)/python scripts/draw_results.py

clean:
	rm -rf $(VENV)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"walkback needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)
