# Two commands do everything on a machine that has only Python 3.11+ and pip: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test long check types bench docs install clean

demo: $(STAMP)
	$(BIN)/hushbot compare experiment=demo

# Tests start hushbot some hundred times: that its modules are compiled once needs leave to write them down.
test: $(STAMP)
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long"

# What takes longer than a test run may: more kills of more launchers and processes.
long: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest tests/test_architecture.py

# mypy cannot see through an editable install's import hook, so a copy is checked.
types: $(STAMP)
	rm -rf build/types
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/types .
	cd build/types && $(abspath $(BIN))/mypy --strict --config-file $(abspath pyproject.toml) -p hushbot

bench: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/all_claims.py

docs: $(STAMP)
	$(BIN)/python -c 'from hushbot.run import report_schema; print(report_schema(), end="")' > docs/report.schema.json

install: $(STAMP)

# torch first and by its pin: without one, pip may pull several gigabytes of another build. pip compiles one file after the
# other; what cannot be compiled (templates, other versions' syntax) is never imported.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch setuptools wheel
	$(PIP_INSTALL) --no-build-isolation -e '.[dev,smollm2]'
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	touch $(STAMP)

clean:
	rm -rf build runs comparison
