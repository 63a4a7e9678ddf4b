#!/usr/bin/env bash
# cuda_compile.sh FOLDER PYTHON: compiles ggml's code for CUDA where neither a GPU nor a driver is, without root. Compiler and
# libraries are NVIDIA's packages of PyPI, from cuda_toolkit.txt. It makes
#     FOLDER/libggml-cuda.so      belongs beside the libggml that plugins/ggml/lib builds
#     FOLDER/toolkit              CUDA's compiler and libraries
#     FOLDER/driver               a driver that finds no GPU
#     FOLDER/environment          to be sourced: CUDA's libraries are found
# CUDA_ARCHITECTURES names the GPUs, as CMake does; without it, the code is compiled for one, as PTX. CUDA_FA=ON compiles the
# kernels of flash attention too, a third of all. JOBS is the number of compilers. PYTHON needs the packages cmake and ninja.
# An interrupted call goes on where it stopped.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
bin=$(cd "$(dirname "$2")" && pwd) # CMake calls ninja from folders of its own
python=$bin/$(basename "$2")
here=$(cd "$(dirname "$0")" && pwd)
toolkit=$folder/toolkit
library=$here/../../plugins/ggml/lib
options=(-DGGML_CUDA=ON -DGGML_CUDA_NCCL=OFF "-DGGML_CUDA_FA=${CUDA_FA:-OFF}" "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-80-virtual}")

packages=$(sha256sum <"$here/cuda_toolkit.txt")
if [ "$(cat "$folder/fetched" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$folder/aside" "$toolkit"
    "$python" -m pip install --quiet --no-deps --target "$folder/aside" -r "$here/cuda_toolkit.txt"
    mv "$folder"/aside/nvidia/cu* "$toolkit"
    rm -rf "$folder/aside"
    for file in "$toolkit"/lib/*.so.*; do # linkers look for names without a version
        ln -sf "$(basename "$file")" "${file%.so.*}.so"
    done
    echo "$packages" >"$folder/fetched"
fi
mkdir -p "$folder/driver" "$toolkit/lib/stubs"
cc -std=c11 -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 "$here/cuda_driver.c" -o "$folder/driver/libcuda.so.1"
ln -sf "$folder/driver/libcuda.so.1" "$toolkit/lib/stubs/libcuda.so"

wanted=$(cat "$library/source.txt" "$here/cuda_toolkit.txt" - <<<"${options[*]}" | sha256sum)
if [ "$(cat "$folder/built" 2>/dev/null)" != "$wanted" ]; then
    "$bin/cmake" -S "$library" -B "$folder/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$bin/ninja" \
        -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" \
        -DCMAKE_CUDA_COMPILER="$toolkit/bin/nvcc" -DCUDAToolkit_ROOT="$toolkit" "${options[@]}"
    "$bin/cmake" --build "$folder/build" --target ggml-cuda --parallel "${JOBS:-2}"
    cp "$(find "$folder/build" -name libggml-cuda.so)" "$folder/"
    echo "$wanted" >"$folder/built"
fi
rm -rf "$folder/build"
echo "export LD_LIBRARY_PATH=\"$toolkit/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"" >"$folder/environment"
