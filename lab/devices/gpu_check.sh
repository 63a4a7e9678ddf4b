#!/usr/bin/env bash
# gpu_check.sh: everything that is to be seen on a machine with an NVIDIA GPU, in steps of less than eight minutes that need no
# network and go on where they stopped. What matters most comes first.
#
#     lab/devices/gpu_check.sh prepare FOLDER    before, where there is a network: wheels and sources, in parts of PART
#     lab/devices/gpu_check.sh receive FOLDER    there: takes the parts that FOLDER holds; all parts may come in several calls
#     lab/devices/gpu_check.sh next              there, again and again: the steps that are not done yet
#     lab/devices/gpu_check.sh STEP              there: one step anew, as in suite:ggml
#     lab/devices/gpu_check.sh report            all results
#
# The machine needs the driver, CUDA's compiler and libraries, cuDNN, CMake, ninja, a C++ compiler and Python with pip and venv.
# GPU_WORK is the folder to work in, GPU_KIND another kind of ggml's devices, as in GPU_KIND=Vulkan, and GPU_PYTHON a Python
# with backbay and ggml for it, so that nothing is installed or built. GPU_STEPS are the steps that `next` does, GPU_SIZE is
# the size of the suite, GPU_KINDS are the kinds of models whose logits are compared, and GPU_SHAPES the models to measure.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
WORK=${GPU_WORK:-$HOME/backbay-gpu}
KIND=${GPU_KIND:-CUDA}
ARCHITECTURES=${GPU_ARCHITECTURES:-native}
VERSION=${GPU_PYTHON_VERSION:-3.12}
PY=${GPU_PYTHON:-$WORK/venv/bin/python}
PART=36m  # with this repository, less than 64 MiB
LIMIT=450 # seconds of one step
CALL=560 # seconds of one call of `next`, whose last step may have less time
ENOUGH=${GPU_ENOUGH:-390} # seconds after which a step ends itself, and tells what it has done
JOBS=${GPU_JOBS:-$(nproc)}
TINY=examples/models/backbay-tiny-f16.gguf
SHAPES=${GPU_SHAPES:-one_b eight_b}
COUNTS=(1 8 32) # sequences at once
# What failed on an H200 in November 2026.
AGAIN_ggml=add_id,cast,contiguous,cos,cumsum,delta_rule,div,gelu,interpolate,mean,mulmat,mulmat_id,neg,pad,rms_norm,rows
AGAIN_ggml+=,scaled_dot_product_attention,set,set_rows,sin,softmax,sqrt,sum_rows,tanh,thread_counts
AGAIN_onnx=argsort,conv2d,diag,gelu,gelu_erf,long_graph,rope,set_rows,settings_change_no_result,top_k,tri
mkdir -p "$WORK/results"

backbay() { "$PY" -m backbay "$@"; }
device() { if [ "$1" = onnx ]; then echo CUDA:0; else echo "$KIND:0"; fi; }

# -- before, and there ---------------------------------------------------------------------------------

prepare() { # what a stopped call has fetched is kept
    local folder=$1 inputs=$1/inputs
    local wheels=$inputs/wheels sdist=llama_cpp_python-0.3.36
    mkdir -p "$wheels"
    CXX=false python3 -m pip wheel --quiet --no-deps --wheel-dir "$wheels" ./core ./plugins/cpu_ref ./plugins/native ./plugins/ggml \
        ./plugins/onnx ./plugins/torch ./plugins/jax ./conformance ./apps/engine || return
    # All that these depend on, but for the library of ggml, which is built there, as native code is.
    python3 -m pip download --quiet --dest "$wheels" --find-links "$wheels" --only-binary=:all: --python-version "$VERSION" \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 "${PACKAGES[@]}" array-api-compat || return
    python3 -m venv "$folder/tools" && "$folder/tools/bin/python" -m pip install --quiet scikit-build-core || return # sdists ask for it
    "$folder/tools/bin/python" plugins/ggml/lib/source.py && cp plugins/ggml/lib/ggml_python-*.tar.gz "$inputs/" || return
    [ -e "$folder/$sdist.tar.gz" ] || PIP_CONSTRAINT='' "$folder/tools/bin/python" -m pip download --quiet --no-deps --no-binary=:all: \
        --no-build-isolation --dest "$folder" "llama-cpp-python==${sdist##*-}" || return
    tar -C "$inputs" -xzf "$folder/$sdist.tar.gz" --strip-components=2 --exclude='llama.cpp/docs' --exclude='llama.cpp/models' \
        --exclude='llama.cpp/tools/ui' "$sdist/vendor/llama.cpp" || return
    rm -rf "$folder/parts" && mkdir "$folder/parts"
    tar -C "$folder" -czf - inputs | split -b $PART - "$folder/parts/part." && (cd "$folder/parts" && sha256sum part.* >sums)
    ls -l "$folder/parts"
}

receive() { # the sums come with the first part
    mkdir -p "$WORK/parts"
    cp "$1"/* "$WORK/parts/"
    local name missing=
    for name in $(cut -d' ' -f3 "$WORK/parts/sums"); do [ -e "$WORK/parts/$name" ] || missing+=" $name"; done
    [ "$missing" ] && { echo "not here yet:$missing"; return 75; }
    (cd "$WORK/parts" && sha256sum --quiet --check sums) && cat "$WORK"/parts/part.* | tar -C "$WORK" -xz && echo "all parts are here"
}

PACKAGES=(backbay backbay-cpu-ref backbay-onnx backbay-conformance backbay-engine onnxruntime-gpu cffi regex pillow pytest scikit-build-core)
# torch and jax are those of another Python there, and come with their own NumPy.
BESIDE=(backbay backbay-cpu-ref backbay-conformance backbay-torch backbay-jax gguf platformdirs pluggy hypothesis sortedcontainers array-api-compat)

install() {
    export PIP_REQUIRE_VIRTUALENV=1
    python3 -m venv --clear "$WORK/venv" || return
    local offline=("$PY" -m pip install --quiet --no-index --find-links "$WORK/inputs/wheels")
    "${offline[@]}" "${PACKAGES[@]}" || return
    "${offline[@]}" --no-deps backbay-ggml || return # its library is built
    "${offline[@]}" --no-deps --no-build-isolation --force-reinstall ./plugins/native || return
    "${offline[@]}" --no-deps --upgrade --target "$WORK/beside" "${BESIDE[@]}" || return
    # ONNX Runtime looks for CUDA's libraries beside itself, and they may be packages of another Python here.
    local beside folder
    beside=$("$PY" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    for folder in $(python3 -c 'import site; print(*site.getsitepackages())'); do
        if [ -e "$folder/nvidia" ] && [ ! -e "$beside/nvidia" ]; then ln -s "$folder/nvidia" "$beside/nvidia"; fi
    done
}

build() { # build FOLDER TARGETS OPTION...: the compiler's objects are kept, so that another call goes on
    local folder=$1 targets=$2
    shift 2
    [ -e "$folder/build.ninja" ] || cmake -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DCMAKE_CUDA_ARCHITECTURES="$ARCHITECTURES" "$@" || return
    # shellcheck disable=SC2086 # several words
    cmake --build "$folder" --target $targets
}

ggml() { # zen4: the best code for a CPU with AVX-512, but without AMX
    cp -n "$WORK"/inputs/ggml_python-*.tar.gz plugins/ggml/lib/
    build "$WORK/ggml" "libraries ggml-cuda" -S plugins/ggml/lib -DBACKBAY_CPUS="here;zen4" -DPython_EXECUTABLE="$PY" || return
    cmake --install "$WORK/ggml" --prefix "$WORK/lib"
}

llama() { # to compare speeds with
    build "$WORK/llama" "llama-bench llama-batched-bench" -S "$WORK/inputs/llama.cpp" -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_SERVER=OFF
}

# -- steps ---------------------------------------------------------------------------------------------

machine() { # with the trial of each of ggml's devices
    nvidia-smi 2>/dev/null || echo "no nvidia-smi"
    backbay doctor
}

tiny() { # tiny BACKEND [OPTION]
    "$PY" lab/devices/tiny_model.py "$1" "$(device "$1")" ${2:+--option "$2"}
}

counts() { "$PY" lab/devices/step_counts.py "$1" "$(device "$1")"; }

gpus() { "$PY" -m pytest -p no:cacheprovider -q plugins/ggml/tests/devices/test_gpus.py; }

again() { # what failed last time
    local ops=AGAIN_$1
    judge "again-$1" backbay conform "$1" --device "$(device "$1")" --op "${!ops}"
}

suite() { judge "suite-$1" backbay conform "$1" --device "$(device "$1")"; }

judge() { # judge NAME COMMAND...: a run of the suite; one that was stopped goes on
    local stopped=$WORK/results/$1.stopped resume=() status
    [ -e "$stopped" ] && resume=(--resume)
    touch "$stopped"
    "${@:2}" --size "${GPU_SIZE:-default}" --timeout 300 --time-limit "$ENOUGH" --jobs "$JOBS" --json "$WORK/results/$1.json" \
        --failures "$WORK/results/failures-$1" "${resume[@]}"
    status=$?
    [ $status = 124 ] || rm "$stopped"
    return $status
}

framework() { # framework NAME DEVICE: the suite with PyTorch or JAX of the machine's own Python
    local have="import torch; assert torch.cuda.is_available(); print(torch.__version__)"
    [ "$1" = jax ] && have="import jax; assert jax.default_backend() == 'gpu'; print(jax.__version__)"
    python3 -c "$have" || { echo "python3 has no $1 with CUDA"; return 0; }
    export PYTHONPATH=$WORK/beside XLA_PYTHON_CLIENT_PREALLOCATE=false
    judge "$1" python3 -m backbay conform "$1" --device "$2:0" --few-shapes
}

logits() { # logits BACKEND [--half]
    local kinds=()
    [ "${GPU_KINDS:-}" ] && read -ra kinds <<<"--kinds $GPU_KINDS"
    "$PY" lab/devices/architectures.py "$1" "$(device "$1")" ${2:-} --time-limit "$ENOUGH" --done "$WORK/results/logits-$1${2:-}.kinds" \
        "${kinds[@]}"
}

differences() { backbay diff "$TINY" --a cpu_ref --b "$1"; }

model() { [ -e "$(file "$1")" ] || "$PY" lab/bench/llama_file.py "$(file "$1")" --shape "$1"; }
file() { echo "$WORK/$1.q4_0.gguf"; }

memory() { "$PY" lab/devices/gpu_memory.py "$(file "${SHAPES%% *}")" "$1" "$(device "$1")"; }

speed() { # speed SIDE SHAPE: a prompt of 512, and several sequences after 64 tokens; graphs: onnx with CUDA graphs, eager: ggml without
    local path
    path=$(file "$2")
    case $1 in
        llama)
            "$WORK/llama/bin/llama-bench" -m "$path" -p 512 -n 64 -ngl 99 &&
                "$WORK/llama/bin/llama-batched-bench" -m "$path" -c 4096 -npp 64 -ntg 64 -npl "$(IFS=,; echo "${COUNTS[*]}")" -ngl 99
            ;;
        graphs) columns onnx "$2" --option cuda_graphs=on ;;
        eager) GGML_CUDA_DISABLE_GRAPHS=1 columns ggml "$2" ;;
        theirs) BACKBAY_GGML_LIB=$WORK/llama/bin columns ggml "$2" ;; # our plans on llama.cpp's libggml
        *) columns "$1" "$2" ;;
    esac
}

columns() { # columns BACKEND SHAPE OPTION...
    "$PY" lab/bench/columns.py --backend "$1" --sides native --model "$(file "$2")" --counts "${COUNTS[@]}" --tokens 48 --rounds 3 \
        --threads "$JOBS" "${@:3}"
}

offload() { # offload BACKEND LAYERS: the weights of other layers are copied there for large batches, by ggml
    backbay bench "$(file "${SHAPES%% *}")" --backend "$1" --prompt 512 --generate 16 --rounds 3 --gpu-layers "$2"
}

amx() { # on the CPU, with AMX and without
    grep -q amx_int8 /proc/cpuinfo || { echo "this CPU has no AMX"; return 0; }
    local kind
    for kind in amx avx512-vnni; do
        echo "BACKBAY_CPU=$kind" && BACKBAY_CPU=$kind columns "$1" "${SHAPES%% *}" --gpu-layers 0 || return
    done
}

steps() { # ONNX Runtime is tried with CUDA alone
    local each shape backends="ggml onnx" llama=llama more="graphs eager theirs"
    [ "$KIND" = CUDA ] || backends=ggml more="eager theirs"
    if [ "${GPU_PYTHON:-}" ]; then llama= more=; else echo install ggml; fi
    echo machine tiny:ggml gpus again:ggml
    [ "$KIND" = CUDA ] && echo tiny:onnx tiny:onnx:cuda_graphs=on again:onnx
    for each in $backends; do echo "suite:$each"; done
    for shape in $SHAPES; do
        echo "model:$shape"
        for each in $backends; do echo "speed:$each:$shape"; done
        [ "$shape" = "${SHAPES%% *}" ] && echo $llama
        for each in $llama $more; do echo "speed:$each:$shape"; done
        more=
    done
    for each in $backends; do echo "memory:$each" "offload:$each:8" "offload:$each:1" "counts:$each"; done
    for each in $backends; do echo "logits:$each:--half" "logits:$each" "differences:$each"; done
    echo amx:ggml amx:onnx
    [ "${GPU_PYTHON:-}" ] || echo framework:torch:CUDA framework:jax:GPU
}

step() { # within its time
    local words
    IFS=: read -ra words <<<"$1"
    export BACKBAY_GGML_LIB=${BACKBAY_GGML_LIB:-$WORK/lib}
    [ -e "$BACKBAY_GGML_LIB" ] || unset BACKBAY_GGML_LIB
    "${words[@]}"
}

perform() { # a step, with its output in a file
    local begun=$SECONDS limit=$((CALL - SECONDS)) status
    [ $limit -gt $LIMIT ] && limit=$LIMIT
    echo "== $1"
    # The programs of a step that was killed may live on, and hold the lock: two steps would disturb each other.
    exec 9>"$WORK/lock"
    flock --wait 60 9 || { echo "an earlier step still runs"; return 124; }
    GPU_ENOUGH=$((limit - 60)) timeout --kill-after=15 $limit bash lab/devices/gpu_check.sh step "$1" >"$WORK/results/$1.log" 2>&1
    status=$?
    tail -n 12 "$WORK/results/$1.log"
    echo "status $status after $((SECONDS - begun)) s, $(date -u +%FT%TZ)" | tee -a "$WORK/results/$1.log"
    # Nothing runs without these two. Builds, the suite and logits go on in the next call, and what had less time begins again.
    case $status,$1 in 0,* | 124,*) ;; *,install | *,ggml) return 1 ;; esac
    [ $status = 124 ] && [ $limit -lt $LIMIT ] && return 124
    case $status,$1 in 124,ggml | 124,llama | 124,again:* | 124,suite:* | 124,framework:* | 124,logits:*) return 124 ;; esac
    touch "$WORK/results/$1.done"
}

next() {
    local step
    for step in ${GPU_STEPS:-$(steps)}; do
        [ -e "$WORK/results/$step.done" ] && continue
        [ $SECONDS -gt $((CALL - 120)) ] && { echo "to be continued: call again"; return 0; }
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
