#!/usr/bin/env bash
# cuda_compile.sh FOLDER PYTHON: the package of ggml's code for CUDA, compiled where neither a GPU nor a driver is, without
# root. Compiler and libraries are NVIDIA's packages of PyPI, from cuda_toolkit.txt. It makes
#     FOLDER/dist                 sdist and wheel of backbay-ggml-cuda
#     FOLDER/libggml-cuda.so      the wheel's library
#     FOLDER/toolkit              CUDA's compiler and libraries
#     FOLDER/driver               a driver that finds no GPU
#     FOLDER/environment          to be sourced: CUDA's libraries are found
# CUDA_ARCHITECTURES names the GPUs, as CMake does. Without it, there is machine code for Turing, for Ampere and Ada, for
# Hopper, and for consumers' Blackwell; other GPUs compile Hopper's PTX, with a driver of this CUDA or newer. CUDA_FA=OFF leaves
# out the kernels of flash attention, a third of all. JOBS is the number of compilers. PYTHON needs the packages of
# requirements-dist.txt. An interrupted call goes on where it stopped.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
bin=$(cd "$(dirname "$2")" && pwd)
python=$bin/$(basename "$2")
here=$(cd "$(dirname "$0")" && pwd)
toolkit=$folder/toolkit
library=$here/../../plugins/ggml/lib
options="-DGGML_CUDA_NCCL=OFF -DGGML_CUDA_FA=${CUDA_FA:-ON} -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES:-75-real;80-real;90;120a-real}"

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

wanted=$(cat "$library"/{CMakeLists.txt,source.txt,pyproject.toml} "$here/cuda_toolkit.txt" - <<<"$options" | sha256sum)
if [ "$(cat "$folder/built" 2>/dev/null)" != "$wanted" ]; then
    export PATH=$bin:$PATH SKBUILD_BUILD_DIR=$folder/build CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}
    export CMAKE_ARGS="-DCMAKE_CUDA_COMPILER=$toolkit/bin/nvcc -DCUDAToolkit_ROOT=$toolkit $options"
    nice "$python" "$here/../tools/dist.py" --gpu cuda --into "$folder/dist"
    "$python" -m zipfile -e "$folder"/dist/*.whl "$folder/wheel"
    mv "$folder/wheel/backbay_ggml_lib/libggml-cuda.so" "$folder/"
    rm -rf "$folder/wheel"
    echo "$wanted" >"$folder/built"
fi
rm -rf "$folder/build"
echo "export LD_LIBRARY_PATH=\"$toolkit/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"" >"$folder/environment"
