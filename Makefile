# Two commands: `make demo` and `make test`. Both do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out

# Without bytecode files, every process of the tests and of the demo would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long test-ray test-kubernetes lint types imports unit browser postgres slurm prometheus torch ray golden soak bench bench-peers pictures docs clean

help:
	@echo "make demo    a dozen real jobs, the same under other policies, seven schedulers compared; a report"
	@echo "make test    ruff, mypy --strict, import-linter, pytest without the long tests"
	@echo "make test-long  the long tests: clusters under faults, Slurm, papers, documentation (20 minutes)"
	@echo "make test-ray the tests on a Ray cluster of this machine, which installs Ray (380 MB)"
	@echo "make test-kubernetes the tests on a Kubernetes API server, which is built once (10 minutes of CPU time)"
	@echo "make docs    the documentation site, $(OUT)/docs/index.html"
	@echo "make setup   only the virtual environment in $(VENV)"
	@echo "make golden  the digests of event logs, in full and as other machines would round"
	@echo "make soak    the runtime under faults, 10,000 seeds of its simulation (100 minutes of CPU time)"
	@echo "make bench   the benchmarks (minutes)"
	@echo "make bench-peers  allocations in cvxpy, SciPy and Fairlead (minutes)"
	@echo "make pictures the pictures of docs/reference/policies.md, docs/papers/profiles.md and docs/papers/prediction.md"
	@echo "make clean   remove what the above made"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml papers/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Fairlead needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: install it (Debian: apt-get install python3-venv) and try again"; exit 1; }
	@echo "installing into $(VENV): a few minutes, the first time"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable papers
	@$(BIN)/python -m compileall -q src papers/src
	@touch $@

demo: setup
	$(BIN)/fairlead demo --out $(OUT)
	@echo
	@echo "Open $(OUT)/demo.html in a browser: tables, distributions, use over time, a Gantt chart to zoom, every job."
	@echo "Then try, with . $(BIN)/activate:"
	@echo "  fairlead resimulate $(OUT)/demo.jsonl --policies las,tiresias    # the jobs you just saw, under policies of your choice"
	@echo "  fairlead up    # a cluster that stays; README.md says what to submit"

test: lint types imports unit

lint: setup
	$(BIN)/ruff check src papers tests benchmarks examples docs
	$(BIN)/ruff format --check src papers tests benchmarks examples docs

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports --no-cache

PYTEST := $(BIN)/pytest --numprocesses auto --dist loadscope --no-loadscope-reorder
unit: setup browser postgres torch
	$(PYTEST) -m 'not long'

test-long: setup browser postgres slurm prometheus torch
	$(PYTEST) -m long

# A cluster of small Ray nodes on this machine; `make test` has the parts that need no Ray.
ray: setup
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[ray]'

test-ray: ray
	FAIRLEAD_TEST_RAY=1 $(BIN)/pytest tests/on_ray

# The report is tested in a real browser. As root on Debian it is installed; elsewhere those tests say that they were skipped.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing chromium for the browser tests"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 \
		|| echo "chromium could not be installed; the browser tests will be skipped"; \
	fi

# Journals are tested on a real PostgreSQL server, which the tests start for themselves. Installed in the same way.
postgres:
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null 2>&1 || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing postgresql for the tests of journals"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql) >/dev/null 2>&1 \
		|| echo "postgresql could not be installed; the tests of journals in it will be skipped"; \
	fi

# Agents on Slurm are tested with its real daemons, which the tests start for themselves. Installed in the same way.
slurm:
	@{ [ -x /usr/sbin/slurmctld ] && [ -x /usr/sbin/slurmd ] && command -v sbatch && [ -x /usr/sbin/munged ]; } >/dev/null 2>&1 || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing slurm for the tests of agents on it"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			slurmctld slurmd slurm-client munge) >/dev/null 2>&1 \
		|| echo "slurm could not be installed; the tests on it will be skipped"; \
	fi

# Rules and dashboard are tested with a real Prometheus. Installed in the same way; Debian's service of it is not left running.
prometheus:
	@{ command -v prometheus && command -v promtool; } >/dev/null 2>&1 || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing prometheus for the tests of alert rules"; \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus) >/dev/null 2>&1 \
		|| echo "prometheus could not be installed; the tests of alert rules in it will be skipped"; \
		if command -v systemctl >/dev/null 2>&1; then systemctl disable --now prometheus >/dev/null 2>&1 || true; fi; \
	fi

# Predictions run PyTorch on the CPU. It is installed if the package index has a build without CUDA, which is 200 MB; with CUDA, it
# would be gigabytes. The libraries of models are small.
TORCH := torch==2.13.0
MODELS := timm==1.0.31 transformers==5.23.0 diffusers==0.42.1 peft==0.21.2
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
torch: setup
	@$(BIN)/python -c 'import sys; from importlib.util import find_spec; sys.exit(None in map(find_spec, sys.argv[1:]))' \
		torch timm transformers diffusers peft || \
	if $(PIP) install --dry-run --report $(VENV)/torch.json $(TORCH) $(MODELS) >/dev/null 2>&1 \
		&& ! grep --quiet '"name": *"nvidia-' $(VENV)/torch.json; then \
		echo "installing PyTorch for the tests of predictions"; \
		$(PIP) install $(TORCH) $(MODELS) || echo "PyTorch could not be installed; the tests of predictions will be skipped"; \
	else \
		echo "the package index has no PyTorch without CUDA; the tests of predictions will be skipped"; \
	fi

# A real kube-apiserver with etcd, and processes instead of containers. It is built into ~/.cache/fairlead/kubernetes.
test-kubernetes: setup
	@tests/on_kubernetes/build.sh
	FAIRLEAD_TEST_KUBERNETES=1 $(BIN)/pytest tests/on_kubernetes

# Digests of event logs, in full and as other machines would round (tests/golden/README.md).
golden: setup
	$(BIN)/python tests/golden/golden_cases.py
	$(BIN)/python tests/golden/golden_cases.py --perturb sums
	$(BIN)/python tests/golden/golden_cases.py --perturb rates
	$(BIN)/python tests/golden/golden_cases.py --perturb solver
	$(BIN)/python tests/golden/golden_cases.py --perturb libm
	$(BIN)/python tests/golden/golden_cases.py --perturb path

# The runtime under faults, on a virtual clock; `make test-long` runs 200 seeds.
soak: setup
	$(BIN)/python -m fairlead.testing.runtime_simulation.command --seeds 10000

bench: setup
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/journals.py
	$(BIN)/python benchmarks/runtime.py
	$(BIN)/python benchmarks/fidelity.py

# Compares Fairlead with cvxpy and SciPy. What cannot be installed is reported as such.
bench-peers: setup
	@$(BIN)/python -c "import clarabel, cvxpy, scipy" 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check clarabel cvxpy scipy \
		|| echo "cvxpy, Clarabel or SciPy cannot be installed: the table says which is missing"
	$(BIN)/python benchmarks/peers.py

pictures: setup
	$(BIN)/python docs/make_policy_pictures.py
	$(BIN)/python docs/make_prediction_pictures.py

# Works from file:// without a network. A warning, such as a link that leads nowhere, is an error.
docs: setup
	$(BIN)/python -m sphinx --builder html --jobs auto --fail-on-warning --keep-going --doctree-dir $(OUT)/.doctrees docs $(OUT)/docs
	@echo
	@echo "Open $(OUT)/docs/index.html in a browser."

clean:
	rm -rf $(VENV) $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
