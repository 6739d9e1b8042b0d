#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_install.sh BUILD_FOLDER DRIVER: installs into an empty folder, looks at what lies where, and runs a program by
# the installed mpsrun, with nothing of the build tree in its way.
set -euo pipefail

build=$1 driver=$2
prefix=$(mktemp -d "${TMPDIR:-/tmp}/mpsshim-install.XXXXXX")
trap 'rm -rf "$prefix"' EXIT
fail() {
    printf 'check_install: %s\n' "$*" >&2
    find "$prefix" ! -type d >&2
    exit 1
}

DESTDIR='' cmake --install "$build" --prefix "$prefix/usr" >/dev/null
for program in mpsbroker mpsctl mpsrun; do
    [[ -x $prefix/usr/bin/$program ]] || fail "bin/$program is not installed"
    for page in man/man1/$program.1 bash-completion/completions/$program zsh/site-functions/_$program fish/vendor_completions.d/$program.fish; do
        [[ -s $prefix/usr/share/$page ]] || fail "share/$page is not installed"
    done
done
control=$prefix/usr/libexec/mpsshim/nvidia/nvidia-cuda-mps-control
export CUDA_MPS_PIPE_DIRECTORY=$prefix/nvidia CUDA_MPS_LOG_DIRECTORY=$prefix/log
"$control" -d || fail "the installed nvidia-cuda-mps-control -d ended with $?"
[[ $(echo get_default_client_priority | "$control") == 0 ]] || fail "the installed nvidia-cuda-mps-control has no answer"
echo quit | "$control" || fail "the installed nvidia-cuda-mps-control ends no daemon"
unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
for unit in system/mpsshim.service system/mpsshim.socket user/mpsshim.service user/mpsshim.socket; do
    [[ -s $prefix/usr/lib/systemd/$unit ]] || fail "lib/systemd/$unit is not installed"
done
[[ -s $prefix/usr/etc/default/mpsshim ]] || fail "etc/default/mpsshim is not installed"
grep -q "^ExecStart=$prefix/usr/bin/mpsbroker -f " "$prefix/usr/lib/systemd/system/mpsshim.service" || fail "mpsshim.service starts another program"
if command -v systemd-analyze >/dev/null; then
    for kind in system user; do
        options=()
        [[ $kind == system ]] || options=(--user)
        said=$(XDG_RUNTIME_DIR=$prefix SYSTEMD_UNIT_PATH=$prefix/usr/lib/systemd/$kind: systemd-analyze "${options[@]}" --man=no verify \
            "$prefix/usr/lib/systemd/$kind/mpsshim.service" "$prefix/usr/lib/systemd/$kind/mpsshim.socket" 2>&1) || fail "systemd-analyze verify: $said"
        ! grep -F "$prefix" <<<"$said" || fail "systemd-analyze verify: $said"
    done
else
    echo "systemd-analyze is not installed: the units were not verified"
fi
# ldconfig makes a link of each SONAME it meets: nothing that is called libcuda.so.1 may lie in a folder it visits.
while read -r library; do
    [[ $library == */mpsshim/* ]] || fail "$library lies outside a folder of its own"
done < <(find "$prefix/usr" -name '*.so' -o -name '*.so.*')

library=$(find "$prefix/usr" -name libmpsshim.so)
for name in libcuda.so libcuda.so.1 libnvidia-ml.so libnvidia-ml.so.1; do
    link=${library%/*}/libcuda/$name target=$library
    [[ $name == libcuda* ]] || target=${library%/*}/libmpsshim-nvml.so
    [[ $(readlink -f "$link") == "$target" && $(readlink "$link") == ../* ]] || fail "$link is no link to $target that can be moved with it"
done
[[ $(find "${library%/*}/libcuda" ! -type d | wc -l) == 4 ]] || fail "the folder for LD_LIBRARY_PATH has more than the driver's names"

cp "$build/bin/process1" "$prefix/process1"
output=$(env -u LD_PRELOAD CUDA_MPS_PIPE_DIRECTORY="$prefix/pipe" "$prefix/usr/bin/mpsrun" --driver "$driver" -- "$prefix/process1") ||
    fail "process1 under the installed mpsrun ended with $?"
[[ $output == *'Process 1 done.'* ]] || fail "process1 under the installed mpsrun said: $output"

# Without mpsrun: the folder alone, as documented, for a program whose environment has lost LD_PRELOAD. It has found the library if that says so.
output=$(env -u LD_PRELOAD MPSSHIM_REQUIRE=1 CUDA_MPS_PIPE_DIRECTORY="$prefix/nobody" LD_LIBRARY_PATH="${library%/*}/libcuda" "$prefix/process1" 2>&1) &&
    fail "process1 without a broker ended well: $output"
[[ $output == *"No broker answers at $prefix/nobody"* ]] || fail "process1 by LD_LIBRARY_PATH said: $output"
