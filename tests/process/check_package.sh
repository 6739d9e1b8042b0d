#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_package.sh BUILD_TREE DRIVER: makes the .deb, looks at what it says and has, installs it into an empty root, runs a client from there, and
# removes it. Exit status 77: it cannot be done here, with the reason.
set -euo pipefail

build=$1 driver=$2
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || true)
for program in cpack dpkg dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not installed (dpkg-dev)"; exit 77; }
done
if ((EUID != 0)) && [[ -z ${FAKEROOTKEY:-} ]]; then
    command -v fakeroot >/dev/null || { echo "skipped: dpkg needs root, or fakeroot"; exit 77; }
    exec fakeroot "${BASH_SOURCE[0]}" "$@"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/mpsshim-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    printf 'check_package: %s\n' "$*" >&2
    exit 1
}

(cd "$work" && cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/made" >"$work/cpack.log" 2>&1) || fail "cpack: $(tail -n 20 "$work/cpack.log")"
packages=("$work"/made/*.deb)
[[ ${#packages[@]} == 1 && -f ${packages[0]} ]] || fail "not one package: ${packages[*]}"
package=${packages[0]}

field() { dpkg-deb -f "$package" "$1"; }
[[ $(field Package) == mpsshim && ${package##*/} == "mpsshim_$(field Version)_$(field Architecture).deb" ]] || fail "name: ${package##*/}"
[[ $(field Architecture) == "$(dpkg --print-architecture)" ]] || fail "architecture: $(field Architecture)"
# libstdc++6 comes with libfmt: dpkg-shlibdeps of Ubuntu 24.04 does not name it besides.
for library in libc6 libfmt libspdlog; do
    [[ $(field Depends) == *$library* ]] || fail "it does not depend on $library: $(field Depends)"
done
[[ $(field Depends) != *libcuda* && $(field Depends) != *nvidia* ]] || fail "it depends on a driver: $(field Depends)"

# What is where. Nothing lies in a folder that ldconfig visits, but in its own below.
dpkg-deb -c "$package" | awk '{ print $1, $2, $6 }' >"$work/contents"
! grep -v ' root/root ' "$work/contents" || fail "files of somebody else's"
! grep -vE ' \./(usr/((bin|lib|libexec|share)/.*)?|usr/(bin|lib|libexec|share)|etc/(default/(mpsshim)?)?)?$' "$work/contents" || fail "files in other places"
! grep -E " \./usr/lib/($multiarch/)?[^/]*\.so" "$work/contents" || fail "a library where ldconfig looks"
for file in usr/bin/mpsbroker usr/bin/mpsctl usr/bin/mpsrun "usr/lib/$multiarch/mpsshim/libmpsshim.so" "usr/lib/$multiarch/mpsshim/libcuda/libcuda.so.1" "usr/lib/$multiarch/mpsshim/libmpsshim-nvml.so" "usr/lib/$multiarch/mpsshim/libcuda/libnvidia-ml.so.1" etc/default/mpsshim \
    usr/lib/systemd/system/mpsshim.service usr/lib/systemd/system/mpsshim.socket usr/lib/systemd/user/mpsshim.service \
    usr/share/man/man1/mpsctl.1 usr/share/bash-completion/completions/mpsctl; do
    grep -q " \./$file\$" "$work/contents" || fail "it has no $file"
done
grep -qE '^-rwxr-xr-x .* \./usr/bin/mpsbroker$' "$work/contents" || fail "rights: $(grep mpsbroker "$work/contents")"
dpkg-deb -e "$package" "$work/control"
[[ $(cd "$work/control" && ls) == $'conffiles\ncontrol\nmd5sums' ]] || fail "it has scripts: $(ls "$work/control")"
[[ $(cat "$work/control/conffiles") == /etc/default/mpsshim ]] || fail "conffiles: $(cat "$work/control/conffiles")"

# Into a root of its own, beside a database of its own: what it depends on is the machine's.
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root/usr"
: >"$root/var/lib/dpkg/status"
in_root() { dpkg --root="$root" --force-depends --force-not-root --log="$work/dpkg.log" "$@" >"$work/dpkg.out" 2>&1 || fail "dpkg $1: $(cat "$work/dpkg.out")"; }
left() { find "$root" -path "$root/var/lib/dpkg" -prune -o ! -type d -printf '%P\n' | sort; }
in_root -i "$package"
grep -q '^ExecStart=/usr/bin/mpsbroker ' "$root/usr/lib/systemd/system/mpsshim.service" || fail "the unit starts another program"
grep -q '^EnvironmentFile=-/etc/default/mpsshim$' "$root/usr/lib/systemd/system/mpsshim.service" || fail "the unit reads other settings"
[[ $("$root/usr/bin/mpsbroker" --version) == "$(field Version)" ]] || fail "mpsbroker --version: $("$root/usr/bin/mpsbroker" --version)"
cp "$build/bin/process1" "$work/process1"
output=$(env -u LD_PRELOAD -u LD_LIBRARY_PATH CUDA_MPS_PIPE_DIRECTORY="$work/pipe" "$root/usr/bin/mpsrun" --driver "$driver" -- "$work/process1" 2>&1) ||
    fail "process1 under the installed mpsrun ended with $?: $output"
[[ $output == *'Process 1 done.'* ]] || fail "process1 under the installed mpsrun said: $output"

# Settings that were changed survive an upgrade and a removal, and nothing else does; a purge leaves nothing.
echo 'MPSBROKER_OPTIONS="--max-clients 7"' >>"$root/etc/default/mpsshim"
in_root --force-confdef -i "$package"
grep -q 'max-clients 7"' "$root/etc/default/mpsshim" || fail "an upgrade has lost a setting"
in_root -r mpsshim
[[ $(left) == etc/default/mpsshim ]] || fail "a removal leaves: $(left)"
in_root -P mpsshim
[[ -z $(left) ]] || fail "a purge leaves: $(left)"
[[ ! -e $root/usr/lib && ! -e $root/usr/bin && ! -e $root/etc/default ]] || fail "folders are left: $(find "$root" -type d)"
echo "the package comes and goes"
