#!/usr/bin/env bash
# software_gpu.sh FOLDER: puts SwiftShader, a Vulkan driver that computes on the CPU, into a folder, without root.
# Debian's package chromium-common carries it, with a Vulkan loader. `source FOLDER/environment` then makes it the GPU.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
if [ ! -e "$folder/environment" ]; then
    command -v apt-get >/dev/null || { echo "SwiftShader comes from a Debian package, and this system has no apt-get" >&2; exit 1; }
    aside=$(mktemp -d "$folder/aside.XXXXXX")
    trap 'rm -rf "$aside"' EXIT
    fetch() { (cd "$aside" && apt-get "$@" download chromium-common) >"$aside/log" 2>&1; }
    if ! fetch; then  # the system's lists of packages are missing or old
        mkdir -p "$aside/lists/partial"
        own=(-o "Dir::State::lists=$aside/lists" -o "Dir::Cache=$aside")
        apt-get "${own[@]}" update >"$aside/log" 2>&1 || true
        fetch "${own[@]}" || { cat "$aside/log" >&2; exit 1; }
    fi
    dpkg --fsys-tarfile "$aside"/chromium-common_*.deb | tar -x -C "$aside" --strip-components=4 ./usr/lib/chromium
    for file in libvk_swiftshader.so libvulkan.so.1 vk_swiftshader_icd.json; do
        mv "$aside/$file" "$folder/"
    done
    cat >"$folder/environment" <<END
export LD_LIBRARY_PATH="$folder\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export VK_DRIVER_FILES="$folder/vk_swiftshader_icd.json" VK_ICD_FILENAMES="$folder/vk_swiftshader_icd.json"
END
fi
