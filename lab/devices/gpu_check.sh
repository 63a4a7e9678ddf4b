#!/usr/bin/env bash
# gpu_check.sh: everything that is to be seen on a machine with an NVIDIA GPU, in steps of less than eight minutes that need no
# network and go on where they stopped.
#
#     lab/devices/gpu_check.sh prepare FOLDER    before, where there is a network: wheels, sources and a model, in parts of 55 MB
#     lab/devices/gpu_check.sh receive FOLDER    there: takes the parts that FOLDER holds; all parts may come in several calls
#     lab/devices/gpu_check.sh next              there, again and again: the steps that are not done yet
#     lab/devices/gpu_check.sh STEP              there: one step anew
#     lab/devices/gpu_check.sh report            all results
#
# The machine needs the driver, CUDA's compiler and libraries, cuDNN, CMake, ninja, a C++ compiler and Python with pip and venv.
# GPU_WORK is the folder to work in, GPU_KIND another kind of ggml's devices, as in GPU_KIND=Vulkan, and GPU_PYTHON a Python
# with backbay and ggml for it, so that nothing is installed or built. GPU_STEPS are the steps that `next` does, GPU_SIZE is
# the size of the suite, GPU_KINDS are the kinds of models whose logits are compared, and GPU_MODEL is the model to measure.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
WORK=${GPU_WORK:-$HOME/backbay-gpu}
KIND=${GPU_KIND:-CUDA}
ARCHITECTURES=${GPU_ARCHITECTURES:-native}
VERSION=${GPU_PYTHON_VERSION:-3.12}
PY=${GPU_PYTHON:-$WORK/venv/bin/python}
LIMIT=450 # seconds of one step
ENOUGH=390 # seconds after which a step ends itself, and tells what it has done
TINY=examples/models/backbay-tiny-f16.gguf
BIG=${GPU_MODEL:-$WORK/one_b.q4_0.gguf}
LLAMA=$WORK/inputs/llama_cpp
PROFILES="core quant attention cache graph memory errors"
mkdir -p "$WORK/results"

backbay() { "$PY" -m backbay "$@"; }

prepare() { # what a stopped call has fetched is kept
    local folder=$1 inputs=$1/inputs
    local wheels=$inputs/wheels
    mkdir -p "$wheels"
    CXX=false python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" \
        ./core ./plugins/cpu_ref ./plugins/native ./plugins/ggml ./plugins/onnx ./conformance ./apps/engine || return
    # All that these depend on, but for the library of ggml, which is built there, as native code is.
    python3 -m pip download --quiet --dest "$wheels" --find-links "$wheels" --only-binary=:all: --python-version "$VERSION" \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 backbay-cpu-ref backbay-onnx backbay-conformance backbay-engine \
        onnxruntime-gpu cffi regex pillow cmake ninja pytest scikit-build-core || return
    python3 -m venv "$folder/tools" && "$folder/tools/bin/python" -m pip install --quiet scikit-build-core || return # sdists ask for it
    "$folder/tools/bin/python" plugins/ggml/lib/source.py && cp plugins/ggml/lib/ggml_python-*.tar.gz "$inputs/" || return
    PIP_CONSTRAINT='' "$folder/tools/bin/python" -m pip download --quiet --no-deps --no-binary=:all: --no-build-isolation --dest "$inputs" \
        llama-cpp-python==0.3.36 || return
    rm -rf "$folder/parts" && mkdir "$folder/parts"
    tar -C "$folder" -cf - inputs | split -b 55m - "$folder/parts/part." && (cd "$folder/parts" && sha256sum part.* >sums)
    ls -l "$folder/parts"
}

receive() { # the sums come with the first part
    mkdir -p "$WORK/parts"
    cp "$1"/* "$WORK/parts/"
    local name missing=
    for name in $(cut -d' ' -f3 "$WORK/parts/sums"); do [ -e "$WORK/parts/$name" ] || missing+=" $name"; done
    [ "$missing" ] && { echo "not here yet:$missing"; return 75; }
    (cd "$WORK/parts" && sha256sum --quiet --check sums) && cat "$WORK"/parts/part.* | tar -C "$WORK" -x && echo "all parts are here"
}

install() {
    export PIP_REQUIRE_VIRTUALENV=1
    local packages=(backbay backbay-cpu-ref backbay-onnx backbay-conformance backbay-engine onnxruntime-gpu cffi regex pillow cmake ninja pytest scikit-build-core)
    python3 -m venv --clear "$WORK/venv" || return
    "$PY" -m pip install --quiet --no-index --find-links "$WORK/inputs/wheels" "${packages[@]}" || return
    "$PY" -m pip install --quiet --no-index --find-links "$WORK/inputs/wheels" --no-deps backbay-ggml || return # its library is built
    "$PY" -m pip install --quiet --no-index --no-deps --no-build-isolation --force-reinstall ./plugins/native || return
    # ONNX Runtime looks for CUDA's libraries beside itself, and they may be packages of another Python here.
    local beside
    beside=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for folder in $(python3 -c 'import site; print(*site.getsitepackages())'); do
        if [ -e "$folder/nvidia" ] && [ ! -e "$beside/nvidia" ]; then ln -s "$folder/nvidia" "$beside/nvidia"; fi
    done
}

ggml() { # the compiler's objects are kept, so that another call goes on
    cp -n "$WORK"/inputs/ggml_python-*.tar.gz plugins/ggml/lib/
    [ -e "$WORK/ggml/build.ninja" ] || cmake -S plugins/ggml/lib -B "$WORK/ggml" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES="$ARCHITECTURES" -DPython_EXECUTABLE="$PY" || return
    cmake --build "$WORK/ggml" --target libraries ggml-cuda || return
    cmake --install "$WORK/ggml" --prefix "$WORK/lib"
}

llama() { # llama.cpp with CUDA, to compare speeds with
    mkdir -p "$LLAMA" && tar -C "$LLAMA" --strip-components=1 -xzf "$WORK"/inputs/llama_cpp_python-*.tar.gz
    [ -e "$WORK/llama/build.ninja" ] || cmake -S "$LLAMA/vendor/llama.cpp" -B "$WORK/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$ARCHITECTURES" -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF || return
    cmake --build "$WORK/llama" --target llama-bench
}

machine() {
    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    backbay doctor
}

tiny_ggml() { "$PY" lab/devices/tiny_model.py ggml "$KIND:0"; }
tiny_onnx() { "$PY" lab/devices/tiny_model.py onnx CUDA:0; }

suite() { # suite BACKEND PROFILE OPTION...
    local backend=$1 profile=$2
    shift 2
    backbay conform "$backend" --profile "$profile" --size "${GPU_SIZE:-default}" --timeout 120 --time-limit "$ENOUGH" --jobs "${GPU_JOBS:-8}" \
        --json "$WORK/results/suite-$backend-$profile.json" --failures "$WORK/results/failures-$backend" "$@"
}

logits() { # logits BACKEND DEVICE [--half]
    local kinds=()
    [ "${GPU_KINDS:-}" ] && read -ra kinds <<<"--kinds $GPU_KINDS"
    "$PY" lab/devices/architectures.py "$1" "$2" ${3:-} --time-limit "$ENOUGH" --done "$WORK/results/logits-$1${3:-}.kinds" "${kinds[@]}"
}

differences() { backbay diff "$TINY" --a cpu_ref --b "$1"; }

model() { [ -e "$BIG" ] || PYTHONPATH=lab/bench "$PY" -c "
from pathlib import Path
from llama_file import SHAPES, ensure_model
ensure_model(Path('$BIG'), SHAPES['one_b'], 'q4_0')"; }

memory() { # the report beside what the driver counts
    backbay memory "$BIG" --backend ggml
    "$PY" - "$BIG" <<'END'
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
    backbay bench "$BIG" --backend ggml --prompt 512 --generate 64
    [ "${GPU_PYTHON:-}" ] || "$WORK/llama/bin/llama-bench" -m "$BIG" -p 512 -n 64 -ngl 99
}

offload() { backbay bench "$BIG" --backend "$1" --prompt 512 --generate 16 --gpu-layers "$2"; } # offload BACKEND LAYERS

steps() { # ONNX Runtime is tried with CUDA alone
    local profile each backends="ggml onnx"
    [ "$KIND" = CUDA ] || backends=ggml
    [ "${GPU_PYTHON:-}" ] || echo install ggml llama
    echo machine model
    for each in $backends; do echo "tiny_$each"; done
    for profile in $PROFILES; do for each in $backends; do echo "suite:$each:$profile"; done; done
    for each in $backends; do echo "logits:$each" "halves:$each" "differences:$each"; done
    # All layers on the GPU, half of them, and one: with ggml, weights of the others are copied there for large batches.
    echo memory speed
    for each in $backends; do echo "offload:$each:99" "offload:$each:8" "offload:$each:1"; done
}

step() { # within its time
    local name first second device=$KIND:0
    IFS=: read -r name first second <<<"$1"
    [ "$first" = onnx ] && device=CUDA:0
    export BACKBAY_GGML_LIB=${BACKBAY_GGML_LIB:-$WORK/lib}
    [ -e "$BACKBAY_GGML_LIB" ] || unset BACKBAY_GGML_LIB
    case $name in
        suite) suite "$first" "$second" --device "$device" ;;
        logits) logits "$first" "$device" ;;
        halves) logits "$first" "$device" --half ;;
        *) "$name" ${first:+"$first"} ${second:+"$second"} ;;
    esac
}

perform() { # a step, with its output in a file
    local begun=$SECONDS status
    echo "== $1"
    # The programs of a step that was killed may live on, and hold the lock: two steps would disturb each other.
    exec 9>"$WORK/lock"
    flock --wait 60 9 || { echo "an earlier step still runs"; return 124; }
    timeout --kill-after=15 "$LIMIT" bash lab/devices/gpu_check.sh step "$1" >"$WORK/results/$1.log" 2>&1
    status=$?
    tail -n 12 "$WORK/results/$1.log"
    echo "status $status after $((SECONDS - begun)) s, $(date -u +%FT%TZ)" | tee -a "$WORK/results/$1.log"
    # Nothing runs without these two. Compiling and logits go on in the next call; a suite that its time limit stopped has
    # reported what has run.
    case $status:$1 in 0:* | 124:*) ;; *:install | *:ggml) return 1 ;; esac
    case $status:$1 in 124:ggml | 124:llama | 124:model | 124:logits:* | 124:halves:*) return 124 ;; esac
    touch "$WORK/results/$1.done"
}

next() {
    local step
    for step in ${GPU_STEPS:-$(steps)}; do
        [ -e "$WORK/results/$step.done" ] && continue
        [ $SECONDS -gt 20 ] && { echo "to be continued: call again"; return 0; }
        perform "$step"
        case $? in 124) echo "to be continued: call again"; return 0 ;; 1) echo "mend this, and call again"; return 1 ;; esac
    done
    echo "all steps are done"
}

report() {
    local step
    for step in $(steps); do [ -e "$WORK/results/$step.log" ] && echo "== $step" && tail -n 30 "$WORK/results/$step.log"; done
}

case ${1:-} in
    prepare | receive | step) "$1" "$2" ;;
    next | report) "$1" ;;
    "") sed -n '2,15p' "$0"; exit 2 ;;
    *) perform "$1" ;;
esac
