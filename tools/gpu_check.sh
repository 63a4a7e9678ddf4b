#!/usr/bin/env bash
# gpu_check.sh: everything that is to be seen on a machine with an NVIDIA GPU, in steps of less than eight minutes that need no
# network and go on where they stopped.
#
#     tools/gpu_check.sh prepare FOLDER    before, where there is a network: wheels, sources and a model, in parts of 55 MB
#     tools/gpu_check.sh receive FOLDER    there: takes the parts that FOLDER holds; all parts may come in several calls
#     tools/gpu_check.sh next              there, again and again: the steps that are not done yet
#     tools/gpu_check.sh STEP              there: one step anew
#     tools/gpu_check.sh report            all results
#
# The machine needs the driver, CUDA's compiler and libraries, cuDNN, CMake, ninja, a C++ compiler and Python with pip and venv.
# GPU_WORK is the folder to work in, GPU_KIND another kind of ggml's devices, as in GPU_KIND=Vulkan, and GPU_PYTHON a Python
# with backbay for it, in place of the one that `install` makes.
set -uo pipefail
cd "$(dirname "$0")/.."
WORK=${GPU_WORK:-$HOME/backbay-gpu}
KIND=${GPU_KIND:-CUDA}
VERSION=${GPU_PYTHON_VERSION:-3.12}
PY=${GPU_PYTHON:-$WORK/venv/bin/python}
LIMIT=450 # seconds of one command
TINY=examples/models/backbay-tiny-f16.gguf
BIG=$WORK/one_b.q4_0.gguf
LLAMA=$WORK/inputs/llama_cpp
PROFILES="core quant attention cache graph memory errors"
mkdir -p "$WORK/results"

backbay() { "$PY" -m backbay "$@"; }
limited() { timeout "$LIMIT" "$@"; }

prepare() {
    local folder=$1 inputs=$1/inputs
    mkdir -p "$inputs/wheels" "$folder/parts"
    python3 -m pip download --quiet --dest "$inputs/wheels" --only-binary=:all: --python-version "$VERSION" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        onnxruntime-gpu cffi pluggy gguf onnx platformdirs hypothesis jinja2 regex pillow scikit-build-core || return
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$inputs/wheels" \
        ./core ./plugins/cpu_ref ./plugins/ggml ./plugins/onnx ./conformance ./engine || return
    cp plugins/ggml/lib/ggml_python-*.tar.gz "$inputs/" || { python3 plugins/ggml/lib/source.py && cp plugins/ggml/lib/ggml_python-*.tar.gz "$inputs/"; } || return
    python3 -m pip download --quiet --no-deps --no-binary=:all: --no-build-isolation --dest "$inputs" llama-cpp-python==0.3.36 || return
    tar -C "$folder" -cf - inputs | split -b 55m - "$folder/parts/part." && (cd "$folder/parts" && sha256sum part.* >sums)
    ls -l "$folder/parts"
}

receive() { # the sums come with the first part
    mkdir -p "$WORK/parts"
    cp -n "$1"/* "$WORK/parts/"
    (cd "$WORK/parts" && sha256sum --quiet --check sums) || { echo "not all parts are here yet"; return 75; }
    cat "$WORK"/parts/part.* | tar -C "$WORK" -x
}

install() {
    python3 -m venv --system-site-packages "$WORK/venv" &&
        limited "$PY" -m pip install --quiet --no-index --find-links "$WORK/inputs/wheels" --upgrade \
            backbay backbay-cpu-ref backbay-ggml backbay-onnx backbay-conformance backbay-engine onnxruntime-gpu regex pillow
}

ggml() { # the compiler's objects are kept, so that another call goes on
    cp -n "$WORK"/inputs/ggml_python-*.tar.gz plugins/ggml/lib/
    [ -e "$WORK/ggml/build.ninja" ] || cmake -S plugins/ggml/lib -B "$WORK/ggml" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES=native -DPython_EXECUTABLE="$PY" || return
    limited cmake --build "$WORK/ggml" --target libraries ggml-cuda || return
    cmake --install "$WORK/ggml" --prefix "$WORK/lib"
}

llama() { # llama.cpp with CUDA, to compare speeds with
    mkdir -p "$LLAMA" && tar -C "$LLAMA" --strip-components=1 -xzf "$WORK"/inputs/llama_cpp_python-*.tar.gz
    [ -e "$WORK/llama/build.ninja" ] || cmake -S "$LLAMA/vendor/llama.cpp" -B "$WORK/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF || return
    limited cmake --build "$WORK/llama" --target llama-bench
}

machine() {
    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    backbay doctor
}

tiny_ggml() { limited "$PY" tools/devices/tiny_model.py ggml "$KIND:0"; }
tiny_onnx() { limited "$PY" tools/devices/tiny_model.py onnx CUDA:0 --whole; }

suite() { # suite BACKEND PROFILE OPTION...
    local backend=$1 profile=$2
    shift 2
    backbay conform "$backend" --profile "$profile" --size "${GPU_SIZE:-default}" --timeout 120 --time-limit "$LIMIT" --jobs "${GPU_JOBS:-8}" \
        --json "$WORK/results/suite-$backend-$profile.json" --failures "$WORK/results/failures-$backend" "$@"
}

logits() { # logits BACKEND DEVICE
    "$PY" tools/devices/architectures.py "$1" "$2" --time-limit "$LIMIT" --done "$WORK/results/logits-$1.kinds"
}

differences() { for each in ggml onnx; do limited "$PY" -m backbay diff "$TINY" --b $each; done; }

model() { [ -e "$BIG" ] || PYTHONPATH=bench limited "$PY" -c "
from pathlib import Path
from llama_file import SHAPES, ensure_model
ensure_model(Path('$BIG'), SHAPES['one_b'], 'q4_0')"; }

memory() { # the report beside what the driver counts
    backbay memory "$BIG" --backend ggml
    limited "$PY" - "$BIG" <<'END'
import subprocess, sys
from backbay_engine import load
def used():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True).stdout.strip()
    except OSError:
        return "unknown"
before = used()
with load(sys.argv[1], backend="ggml") as llm:
    llm.generate("a", max_tokens=4)
    reported = {gpu.id: gpu.total() for gpu in llm.memory().gpus}
    print("reported bytes", reported, "; the driver counted", before, "before and", used(), "now")
END
}

speed() {
    limited "$PY" -m backbay bench "$BIG" --backend ggml --prompt 512 --generate 64
    limited "$WORK/llama/bin/llama-bench" -m "$BIG" -p 512 -n 64 -ngl 99
}

offload() { # half of the layers there; then none, with weights of large batches copied there
    local layers
    for layers in 99 8 0; do
        echo "layers: $layers" && limited "$PY" -m backbay bench "$BIG" --backend ggml --prompt 512 --generate 16 --gpu-layers $layers || return
    done
}

steps() {
    echo install ggml llama machine model tiny_ggml tiny_onnx
    for each in $PROFILES; do echo "suite:ggml:$each" "suite:onnx:$each"; done
    echo logits:ggml logits:onnx differences memory speed offload
}

perform() { # a step in a shell of its own, with its output in a file
    local step=$1 backend profile
    IFS=: read -r name backend profile <<<"$step"
    local command=("$name")
    [ "$name" = logits ] && command=(logits "$backend" "$([ "$backend" = onnx ] && echo CUDA:0 || echo "$KIND:0")")
    [ "$name" = suite ] && command=(suite "$backend" "$profile" --device "$([ "$backend" = onnx ] && echo CUDA:0 || echo "$KIND:0")")
    export BACKBAY_GGML_LIB=${BACKBAY_GGML_LIB:-$WORK/lib}
    [ -e "$BACKBAY_GGML_LIB" ] || unset BACKBAY_GGML_LIB
    echo "== $step"
    local begun=$SECONDS
    ("${command[@]}") >"$WORK/results/$step.log" 2>&1
    local status=$?
    tail -n 12 "$WORK/results/$step.log"
    echo "status $status after $((SECONDS - begun)) s, $(date -u +%FT%TZ)" | tee -a "$WORK/results/$step.log"
    # Compiling and logits go on in the next call; a suite that its time limit stopped has reported what has run.
    case $status:$name in 124:ggml | 124:llama | 124:logits | 75:*) return 124 ;; esac
    touch "$WORK/results/$step.done"
}

next() {
    local step
    for step in ${GPU_STEPS:-$(steps)}; do
        [ -e "$WORK/results/$step.done" ] && continue
        [ $SECONDS -gt 20 ] && { echo "to be continued: call again"; return 0; }
        perform "$step" || { echo "to be continued: call again"; return 0; }
    done
    echo "all steps are done"
}

report() {
    local step
    for step in $(steps); do [ -e "$WORK/results/$step.log" ] && echo "== $step" && tail -n 30 "$WORK/results/$step.log"; done
}

case ${1:-} in
    prepare | receive) "$1" "$2" ;;
    next | report) "$1" ;;
    "") sed -n '2,14p' "$0"; exit 2 ;;
    *) perform "$1" ;;
esac
