# SPDX-License-Identifier: Apache-2.0
# What scripts/setup, scripts/demo and scripts/test share. Sourced, never run.
# shellcheck shell=bash

project_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Colour only where somebody looks.
if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi

step() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints the folder of a CUDA Toolkit (the one that has include/cuda.h), or fails.
cuda_toolkit() {
    local nvcc root
    local -a roots=()
    if nvcc=$(command -v nvcc); then
        nvcc=$(readlink -f "$nvcc")
        roots+=("${nvcc%/bin/nvcc}")
    fi
    roots+=("${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda)
    for root in /usr/local/cuda-*; do roots+=("$root"); done
    for root in "${roots[@]}"; do
        if [[ -n $root && (-e $root/include/cuda.h || -e $root/targets/x86_64-linux/include/cuda.h) ]]; then
            printf '%s\n' "$root"
            return 0
        fi
    done
    return 1
}

has_gpu() { [[ $(nvidia-smi -L 2>/dev/null || true) == *'GPU '[0-9]* ]]; }

# Configures and builds a preset. Ninja where there is one; a tree keeps the generator it was made with.
# Builds everything, or the targets named in the array `build_targets`.
build_targets=()
build_preset() { # PRESET [cmake arguments for the configuration...]
    local preset=$1 tree=$project_root/build/$1 log started=$SECONDS
    local -a targets=()
    shift
    ((${#build_targets[@]} == 0)) || targets=(--target "${build_targets[@]}")
    log=$tree/configure.log
    mkdir -p "$tree"
    if [[ ! -e $tree/CMakeCache.txt && -z ${CMAKE_GENERATOR:-} ]] && command -v ninja >/dev/null; then
        export CMAKE_GENERATOR=Ninja
    fi
    if command -v ccache >/dev/null; then
        set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"
        # What ccache asks for, to keep objects that were compiled with a precompiled header.
        export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:+$CCACHE_SLOPPINESS,}pch_defines,time_macros,include_file_mtime,include_file_ctime
    fi
    step "Configure (preset $preset)"
    if ! (cd "$project_root" && cmake --preset "$preset" -DMPSSHIM_PCH=ON -DMPSSHIM_UNITY=ON "$@") >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die "the configuration failed; all of it is in $log"
    fi
    sed -n '/^-- mpsshim /,/^-- Configuring done/{/Configuring done/!p}' "$log"
    step "Build (preset $preset, $(nproc) jobs)"
    (cd "$project_root" && cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}") ||
        die "the build of preset $preset failed"
    step "Built (preset $preset) in $((SECONDS - started)) s"
}
