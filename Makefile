# `make test` and `make demo` do all the set-up themselves; nothing else is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo docs format bench sanitize sanitize-threads clean

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadfile

demo: .venv/ready
	$(BIN)/regard demo

# The documentation as a site with search, in site/; open site/index.html.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "wrote site/index.html"

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python -m benchmarks

# Native code under sanitizers, in each variant that this processor can run (CONTRIBUTING.md).
# The sanitizer runtime must be loaded before Python; Python itself leaks by design.
VARIANTS ?= $(shell $(BIN)/python -c 'from regard.ops.cpu.build import possible; print(*possible())')
library = $(shell $(CXX) -print-file-name=lib$(1).so)
RECOVER := -fno-sanitize-recover=undefined
# Where the native code cannot be built or opened, its tests are skipped: then this fails.
NATIVE_TESTS := $(BIN)/python -c 'import sys, pytest; from regard.ops.cpu.build import library; \
	all(map(library, ("inference", "training"))) or sys.exit("there is nothing to test"); \
	sys.exit(pytest.main(sys.argv[1:]))' --capture=sys
SANITIZED ?= tests/decoding tests/model/test_attention.py tests/tasks/test_threads.py \
	tests/text/test_dropout.py tests/ops/test_cpu_training.py tests/ops/test_losses.py

sanitize: .venv/ready
	test -n "$(VARIANTS)"
	set -e; for variant in $(VARIANTS); do \
		echo "== $$variant"; \
		REGARD_NATIVE=$$variant REGARD_NATIVE_FLAGS="-O1 -g -fsanitize=address,undefined $(RECOVER)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
		LD_PRELOAD="$(call library,asan) $(call library,ubsan)" \
		$(NATIVE_TESTS) $(SANITIZED); \
	done

# One OpenMP thread for each call: ThreadSanitizer does not see how libgomp's threads wait for each
# other, and would report every parallel stage as a race. It needs a fixed memory layout (setarch).
sanitize-threads: .venv/ready
	test -n "$(VARIANTS)"
	set -e; for variant in $(VARIANTS); do \
		echo "== $$variant"; \
		REGARD_NATIVE=$$variant REGARD_NATIVE_FLAGS="-O1 -g -fsanitize=thread" OMP_NUM_THREADS=1 \
		TSAN_OPTIONS="exitcode=66 suppressions=$(CURDIR)/tests/tsan.supp" \
		LD_PRELOAD="$(call library,tsan)" setarch -R \
		$(NATIVE_TESTS) tests/decoding/test_threads.py -k "not openmp"; \
	done

clean:
	rm -rf .venv

# torch first and exactly: an open range would pull the newest build with gigabytes of CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,interop,lab,serve]'
	touch $@

.venv/docs: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
