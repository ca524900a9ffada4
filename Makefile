# `make test` and `make demo` do all the set-up themselves; nothing else is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo format bench clean

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

demo: .venv/ready
	$(BIN)/regard demo

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv

# torch first and exactly: an open range would pull the newest build with gigabytes of CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
