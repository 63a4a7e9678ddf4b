#!/usr/bin/env bash
# software_vulkan.sh FOLDER PYTHON: the package of ggml's Vulkan code, and a Vulkan driver that computes on the CPU (Mesa's
# lavapipe), in a folder, without root. Driver, headers and shader compiler are Debian 13's, and run with that system's C
# library on any Linux of the same processor. It makes
#     FOLDER/dist                 sdist and wheel of backbay-ggml-vulkan
#     FOLDER/environment          to be sourced: makes lavapipe the GPU
#     FOLDER/faults               a layer of Vulkan, used where BACKBAY_VULKAN_FAULTS=1, that makes it full or lost, or counts calls
#     python-vulkan               beside PYTHON: the same with Debian 13's C library, and so its child processes
# PYTHON needs the packages of requirements-dist.txt. JOBS is the number of compilers. An interrupted call goes on where it stopped.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
bin=$(cd "$(dirname "$2")" && pwd)
python=$bin/$(basename "$2")
here=$(cd "$(dirname "$0")" && pwd)
library=$here/../../plugins/ggml/lib
debian=$folder/debian

fetch() { # the packages, with all that they depend on, by lists of our own
    command -v apt-get >/dev/null || { echo "Mesa comes from Debian, and this system has no apt-get" >&2; exit 1; }
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e $keys ] || { echo "install the package debian-archive-keyring: it has the keys of Debian's packages" >&2; exit 1; }
    rm -rf "$folder"/aside.* # of a call that was killed
    aside=$(mktemp -d "$folder/aside.XXXXXX")
    trap 'rm -rf "$aside"' EXIT
    mkdir -p "$aside/lists/partial" "$aside/archives/partial"
    : >"$aside/status" # nothing is installed, so that nothing is left out
    local mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' | grep --max-count=1 '/debian/*$' || true)}
    [ "$mirror" ] || { echo "this system's packages are not Debian's: name a mirror of Debian in DEBIAN_MIRROR" >&2; exit 1; }
    echo "deb [signed-by=$keys] $mirror trixie main" >"$aside/sources"
    local own=(-o Dir::State="$aside" -o Dir::State::status="$aside/status" -o Dir::Cache="$aside" -o Dir::Etc::sourcelist="$aside/sources")
    own+=(-o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o Acquire::Languages=none)
    own+=(-o APT::Sandbox::User= -o APT::Install-Recommends=false)
    { apt-get "${own[@]}" update && apt-get "${own[@]}" --yes --download-only install \
        mesa-vulkan-drivers libvulkan-dev glslc spirv-headers; } >"$aside/log" 2>&1 || { cat "$aside/log" >&2; exit 1; }
    mkdir "$aside/root"
    for package in "$aside"/archives/*.deb; do
        dpkg --fsys-tarfile "$package" | tar -x -C "$aside/root" --exclude=./usr/share/doc --exclude=./usr/share/locale
    done
    mv "$aside/root" "$debian"
}

[ -e "$debian" ] || fetch
libraries=$(dirname "$(find "$debian/usr/lib" -name 'libvulkan_lvp.so')")
loader=$(echo "$libraries"/ld-linux*)
cat >"$folder/glslc" <<END
#!/bin/sh
exec "$loader" --library-path "$libraries" "$debian/usr/bin/glslc" "\$@"
END
cat >"$bin/python-vulkan" <<END
#!/bin/sh
exec "$loader" --library-path "$libraries" --argv0 "\$0" "$(realpath "$python")" "\$@"
END
chmod +x "$folder/glslc" "$bin/python-vulkan"
sed -E "s#\"library_path\": *\"[^\"]*\"#\"library_path\": \"$libraries/libvulkan_lvp.so\"#" \
    "$debian"/usr/share/vulkan/icd.d/lvp_icd*.json >"$folder/lavapipe.json"

wanted=$(cat "$library"/{CMakeLists.txt,source.txt,pyproject.toml} | sha256sum)
if [ "$(cat "$folder/built" 2>/dev/null)" != "$wanted" ]; then
    export PATH=$bin:$PATH SKBUILD_BUILD_DIR=$folder/build CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2}
    export CMAKE_ARGS="-DCMAKE_PREFIX_PATH=$debian/usr -DVulkan_INCLUDE_DIR=$debian/usr/include
        -DVulkan_LIBRARY=$libraries/libvulkan.so -DVulkan_GLSLC_EXECUTABLE=$folder/glslc"
    nice "$python" "$here/../tools/dist.py" --gpu vulkan --into "$folder/dist"
    echo "$wanted" >"$folder/built"
fi
rm -rf "$folder/build"

mkdir -p "$folder/faults"
cc -std=gnu11 -O2 -fPIC -fvisibility=hidden -shared -I"$debian/usr/include" "$here/vulkan_faults.c" -o "$folder/faults/libvulkan_faults.so"
cat >"$folder/faults/vulkan_faults.json" <<END
{
    "file_format_version": "1.2.0",
    "layer": {
        "name": "VK_LAYER_BACKBAY_faults",
        "description": "makes a device full or lost, and counts calls",
        "type": "GLOBAL",
        "library_path": "$folder/faults/libvulkan_faults.so",
        "api_version": "1.4.0",
        "implementation_version": "1",
        "enable_environment": {"BACKBAY_VULKAN_FAULTS": "1"},
        "disable_environment": {"BACKBAY_VULKAN_NO_FAULTS": "1"}
    }
}
END
# ggml passes over devices that are CPUs, unless they are named. Compiled shaders are kept. They are compiled without
# optimization: with it, the shader of a product takes minutes, and without it four seconds.
cat >"$folder/environment" <<END
export VK_DRIVER_FILES="$folder/lavapipe.json" VK_ICD_FILENAMES="$folder/lavapipe.json" GGML_VK_VISIBLE_DEVICES=0
export VK_ADD_IMPLICIT_LAYER_PATH="$folder/faults"
export MESA_SHADER_CACHE_DIR="$folder/shaders" MESA_SHADER_CACHE_MAX_SIZE=4G GALLIVM_PERF=nopt
END
