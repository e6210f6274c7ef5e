# Each target does its own set-up: a virtual environment in .venv with pinned versions.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORED  := $(VENV)/.core
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE  # what is imported is compiled once, then, and not all of it at installation

.PHONY: demo test test-all shuffled ruff browser latex slurm fashion docs pictures lint bench torture corpus evidence test-floors test-light clean

# The demo needs the core alone, some 30 packages; what tests, docs and figures need is installed over it.
demo: $(CORED)
	$(BIN)/walkback doctor
	$(BIN)/walkback demo --out runs/demo

# In CI a missing one of these is a failure; elsewhere their tests are skipped, with a line that says so.
NEEDED := $(if $(filter-out false 0,$(CI)),$(foreach what,BROWSER LATEX SLURM FASHION EXTRAS,WALKBACK_NEEDS_$(what)=1))

# Types are checked beside the tests, which wait now and then. `make test-all` runs those marked slow as well.
test: WHICH = -m "not slow"
test test-all: ruff browser latex slurm fashion
	@$(TYPES) & types=$$!; \
	$(NEEDED) $(BIN)/python -m pytest $(WHICH) -n 3 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types && exit $$tests

# The suite in another order, RUNS times; the library that shuffles stays out of the environment of `make test`.
RUNS ?= 20
FIRST ?= 1
shuffled: $(STAMP) browser latex slurm fashion
	$(PIP) --target $(VENV)/shuffled --no-deps --upgrade pytest-randomly
	$(NEEDED) PYTHONPATH=$(VENV)/shuffled $(BIN)/python scripts/shuffled.py --runs $(RUNS) --first $(FIRST)

# $(call ensure,check,Debian packages,what is not tested without them): installed where we may, never a failure here.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600 -o Acquire::http::Timeout=20 -o Acquire::Retries=1
define ensure
	@if ! ($(1)) >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing $(2) ..."; \
	    ($(APT) update && $(APT) install -y --no-install-recommends $(2)) >/dev/null || echo "apt-get did not install it."; \
	  fi; \
	  ($(1)) >/dev/null 2>&1 || echo "Not tested here: $(3). It needs (Debian): $(2)."; \
	fi
endef

browser:
	$(call ensure,command -v chromium && command -v chromedriver,chromium chromium-driver,the page in a browser)

latex:
	$(call ensure,command -v pdflatex && kpsewhich booktabs.sty,texlive-latex-base texlive-latex-recommended,tables in LaTeX)

slurm:
	$(call ensure,command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged,slurmctld slurmd slurm-client munge,Slurm itself)

fashion:
	$(call ensure,test -d /usr/share/datasets/fashion-mnist,dataset-fashion-mnist,Fashion-MNIST as Debian ships it)

# The site, in site/. Broken links fail; nothing on it is loaded from elsewhere.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html: its search works from a file too."

# The README's pictures, from results/ and a real run (needs chromium).
pictures: $(STAMP)
	$(BIN)/python scripts/screenshots.py

TYPES = $(BIN)/pyright --pythonpath $(BIN)/python

ruff: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: ruff
	$(TYPES)

bench: $(STAMP)
	$(BIN)/python benchmarks/bench_diagnose.py
	$(BIN)/python benchmarks/bench_depth.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_audit.py
	$(BIN)/python benchmarks/bench_page.py

# Networks of other libraries, built tiny and compared with norms by hand; docs/corpus.md is made anew. The libraries come
# without what they ask for: they would pull another torch.
CORPUS := vit-pytorch x-transformers timm torchvision monai torch-geometric einops einx frozendict loguru torch-einops-utils rotary-embedding-torch \
          mlp-mixer-pytorch g-mlp-pytorch conformer performer-pytorch linformer reformer-pytorch perceiver-pytorch pytorch-tcn \
          rtdl_revisiting_models diffusers axial-positional-embedding local-attention product-key-memory colt5-attention hyper-connections \
          nystrom-attention gateloop-transformer mambapy siren-pytorch linear-attention-transformer res-mlp-pytorch timesformer-pytorch \
          fair-esm efficientnet_pytorch clip-anytorch open-clip-torch ftfy regex wcwidth segformer-pytorch graph-transformer-pytorch \
          egnn-pytorch axial-attention spikingjelly segmentation-models-pytorch nflows minGRU-pytorch pytorchcv \
          x-mlps-pytorch soft-moe-pytorch snntorch fast-transformer-pytorch rela-transformer gated-state-spaces-pytorch mega-pytorch \
          halonet-pytorch bottleneck-transformer-pytorch
corpus: $(STAMP)
	$(PYTHON) -m venv --system-site-packages $(VENV)/corpus
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$($(VENV)/corpus/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	$(VENV)/corpus/bin/python -m pip install --quiet --no-deps $(CORPUS)
	PYTHONPATH=src $(VENV)/corpus/bin/python benchmarks/corpus --write docs/corpus.md

evidence: $(STAMP)
	$(BIN)/walkback evidence all --from results --out results/tables
	$(BIN)/walkback evidence feedback-draws --from evidence/draws --out evidence/feedback-draws.md
	$(BIN)/python scripts/draw_results.py
	$(BIN)/python scripts/tries.py
	$(BIN)/python scripts/replication_page.py
	$(BIN)/python scripts/depth_records.py

# Signals, kills, full disks, power cuts, damaged files; `make torture TORTURE="--signals 600 --damaged 20000"`, or
# `TORTURE="--only power --power 1000"`. The small counts of the default take some ten minutes.
torture: $(STAMP)
	PYTHONPATH=src $(BIN)/python scripts/torture.py $(TORTURE)

# The core's tests with the lowest versions that pyproject.toml promises, or with FLOORS=newest on any Python.
FLOORS ?= lowest
CORE   := tests/verdict tests/report/test_judge.py tests/report/test_report.py tests/measures/test_measure.py tests/network/test_anatomy.py \
          tests/rules/test_rules.py tests/lint tests/test_registry.py tests/cli/test_gate.py tests/training/test_bundle.py tests/whole/test_protocol.py
# An older pydantic writes the same schema in other words.
WRITTEN := tests/report/test_report.py::test_the_schema_that_ships_is_the_one_of_the_model
test-floors:
	$(PYTHON) -m venv .venv-$(FLOORS)
	$(PYTHON) scripts/floors.py $(FLOORS) > .venv-$(FLOORS)/floors.txt
	.venv-$(FLOORS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  $(if $(filter newest,$(FLOORS)),-c constraints.txt) -r .venv-$(FLOORS)/floors.txt pytest hypothesis beartype jsonschema hatchling flake8 pytest-xdist
	PYTHONPATH=src .venv-$(FLOORS)/bin/python -m pytest $(CORE) $(if $(filter lowest,$(FLOORS)),--deselect $(WRITTEN))

# The core without torch, as a JAX user or a hook has it.
test-light:
	$(PYTHON) -m venv .venv-light
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -r requirements-light.txt hatchling
	.venv-light/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .
	scripts/light.sh .venv-light/bin

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest .venv-light site

$(CORED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"walkback needs Python 3.11 or newer, this is {v.major}.{v.minor}: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $(CORED)

$(STAMP): $(CORED)
	$(PIP) -e '.[dev]'
	touch $(STAMP)
