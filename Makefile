# What a developer runs. `make` alone says what there is.

PYTHON ?= python3
TORCH_VERSION := 2.13.0
TORCH_INDEX ?=
DATA ?=
JSON ?=
TEST ?=

BIN := .venv/bin
STAMP := .venv/.stamp
KERNEL_TESTS := hashing finite partition index slab table stored_rows bfloat16 wire_rows rounding_draws blocks row_norms row_sums initializers optimizers window staging \
  arrays click_log

.DEFAULT_GOAL := help
.PHONY: help install protos check test nojit deep bench bench-peers bench-scaling bench-staleness bench-plots demo clean

help:
	@echo "make install   build .venv with everything for development (PYTHON=python3.12, TORCH_INDEX=https://download.pytorch.org/whl/cpu)"
	@echo "make demo      train two click models with 2 servers and 2 workers, one in each mode (DATA=train.tsv.gz TEST=test.tsv.gz)"
	@echo "make test      run the whole suite, then the tests that need gigabytes, alone"
	@echo "make nojit     run the tests of the kernels with the kernels as plain Python"
	@echo "make check     format, lint, types, import layers, generated protos, examples in docstrings"
	@echo "make bench     measure the data path beside the machine's own limits (JSON=bench.json writes the numbers)"
	@echo "make bench-peers   measure other people's parameter stores beside ours, those that are installed (JSON=peers.json)"
	@echo "make bench-scaling    measure how costs grow with ids, rows, servers and workers (JSON=scaling.json)"
	@echo "make bench-staleness  measure what a step waits for others in each mode, with and without stragglers (JSON=staleness.json)"
	@echo "make bench-plots      draw what these two wrote, to docs/plots (JSON='scaling.json staleness.json')"
	@echo "make deep      run the suite with its longer searches, with every way to the same end, and with 20 crashes of each kind"
	@echo "make protos    generate the modules of proto/ps_proto/*.proto again"
	@echo "make clean     remove .venv and every cache"

install: $(STAMP)

$(STAMP): pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "There is no '$(PYTHON)' here: install Python 3.11 or newer, or name one with 'make install PYTHON=/path/to/python3'." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Rowstead needs Python 3.11 or newer and '$(PYTHON)' is older: name a newer one, as in 'make install PYTHON=python3.12'." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' has no venv module: install it (on Debian and Ubuntu 'apt install python3-venv') or name another Python with PYTHON=." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
# torch goes first and alone: beside other requirements pip may choose a build with gigabytes of CUDA.
	$(BIN)/python -m pip install --quiet torch==$(TORCH_VERSION) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)")
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

protos: $(STAMP)
	$(BIN)/python proto/generate.py

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	rm -rf build/protos
	$(BIN)/python proto/generate.py build/protos
	@for module in build/protos/ps_proto/*; do cmp "$$module" "proto/ps_proto/$${module##*/}" || { echo "Run 'make protos'." >&2; exit 1; }; done
	@for module in proto/ps_proto/*_pb2*.py*; do [ -e "build/protos/ps_proto/$${module##*/}" ] || \
	  { echo "$$module belongs to no .proto file: remove it." >&2; exit 1; }; done
	$(BIN)/pytest -q --doctest-modules sharding proto/ps_proto ps_worker/cli/script_tokens.py

# Files on two cores at once, each whole on one: its tests may share a cluster.
test: $(STAMP) nojit
	$(BIN)/pytest -m "not large and not deep" -n 2 --dist loadfile
	$(BIN)/pytest -m large --timeout 900 -o faulthandler_timeout=880

# The kernels as plain Python: an index out of bounds is an error here, and memory of somebody else's where they are compiled. Tests of
# distributions look at too many numbers for that.
nojit: $(STAMP)
	NUMBA_DISABLE_JIT=1 $(BIN)/pytest -q -k "not (evenly or moments or uncorrelated)" $(KERNEL_TESTS:%=tests/test_%.py)

deep: $(STAMP)
	rm -rf build/failures
	ROWSTEAD_FAILURES=build/failures $(BIN)/pytest -m "not large" --hypothesis-profile=deep --timeout 3600 -o faulthandler_timeout=3500
	$(BIN)/python -m tests.procs.failure_table build/failures

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)")

# Peers are optional: `.venv/bin/pip install -e '.[peers]'` gets them all but the program redis-server.
bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers $(if $(JSON),--json "$(JSON)")

bench-scaling: $(STAMP)
	$(BIN)/python -m benchmarks.scaling $(if $(JSON),--json "$(JSON)")

bench-staleness: $(STAMP)
	$(BIN)/python -m benchmarks.staleness $(if $(JSON),--json "$(JSON)")

bench-plots: $(STAMP)
	@[ -n "$(JSON)" ] || { echo "Name the results: make bench-plots JSON='scaling.json staleness.json'." >&2; exit 1; }
	$(BIN)/python -m benchmarks.plots $(JSON)

LOG := $(if $(DATA),--train "$(DATA)") $(if $(TEST),--test "$(TEST)")

demo: $(STAMP)
	@echo "1 of 2: logistic regression in numpy, in each of the three modes (examples/click_logistic.py)"
	@$(BIN)/python examples/click_logistic.py $(LOG)
	@echo
	@echo "2 of 2: DLRM in torch, as one launched job (examples/train_dlrm.py)"
	@$(BIN)/rowstead launch --servers 2 --workers 2 --log-level warning examples/train_dlrm.py $(LOG)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
