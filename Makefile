# Two commands: `make demo` and `make test`. Both set up .venv first; nothing needs installing by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(abspath $(VENV))/bin
export PATH := $(BIN):$(PATH)
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: demo test setup lint clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints/cpu.txt scripts/setup.sh
	PYTHON="$(PYTHON)" bash scripts/setup.sh $(VENV)
	touch $@

demo: setup
	$(BIN)/python sweeps/quickstart.py --scale small

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build *.egg-info
