# Every target works on a fresh clone: the virtual environment is made, and filled, by the first one that needs it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The constraints reach pip's build environments too, so that nothing pulls in another torch.
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-arithmetic check format docs bench bench-auto bench-evaluate bench-peers bench-port bench-report bench-rivals zoo clean

help:
	@echo "make demo        evaluate a shipped net on embedded images in every norm"
	@echo "make test        run the tests"
	@echo "make test-arithmetic  the numerical tests as other processors compute, with one thread and two"
	@echo "make check       format, lint, types and import rules"
	@echo "make format      rewrite the code in the house format"
	@echo "make docs        the documentation, as a site in site/ that needs no network"
	@echo "make bench       time of an attack step over a bare forward + backward pass"
	@echo "make bench-evaluate  cost of an evaluation, and its bits on every engine, killed and resumed"
	@echo "make bench-auto  what each part of auto is worth, and its cost as the work grows"
	@echo "make bench-peers auto beside the public attacks at equal cost (needs ../shared/bench and CIFAR-10; hours)"
	@echo "make bench-port  our attacks beside the public port of the paper's (needs ../shared/bench)"
	@echo "make bench-report what a page of 1000 samples weighs, and how fast it opens (needs Chromium)"
	@echo "make bench-rivals the rivals side by side (needs ../shared/bench; about an hour)"
	@echo "make zoo         train the shipped nets again, into trained/ (hours)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[cli]"
	@touch $@

# adv-lib asks for visdom, which does not build, and for torchvision, which its attacks do not need.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps adv-lib
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	@touch $@

# ../shared/bench imports torchvision, which asks for more than is used there.
$(VENV)/.port: constraints.txt $(VENV)/.dev
	$(PIP) --no-deps torchvision
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/pdpgd demo

# A worker a core, each with one torch thread; Ray, Chromium and the memory tests stay together on one worker each.
TEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 8

test: $(VENV)/.dev
	$(TEST)

test-arithmetic: $(VENV)/.dev
	$(BIN)/python scripts/test_arithmetic.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/step_cost.py

bench-evaluate: $(VENV)/.dev
	$(BIN)/python benchmarks/evaluation_cost.py
	$(BIN)/python benchmarks/identical_bits.py

bench-auto: $(VENV)/.dev
	$(BIN)/python benchmarks/auto_parts.py --table docs/auto_parts.md
	$(BIN)/python benchmarks/auto_growth.py

bench-peers: $(VENV)/.port
	$(BIN)/python benchmarks/against_peers.py --table docs/peers.md

bench-port: $(VENV)/.port
	$(BIN)/python benchmarks/against_port.py

bench-report: $(VENV)/.dev
	$(BIN)/python benchmarks/report_cost.py

bench-rivals: $(VENV)/.dev
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/rival_memory.py

zoo: $(VENV)/.demo
	scripts/train_zoo.sh

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
