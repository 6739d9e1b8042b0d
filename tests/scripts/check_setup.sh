#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: check_setup.sh SCRIPTS
# scripts/setup says the commands of the distribution that a stubbed os-release names, and says them where something is
# missing and there is no apt-get. Nothing is installed: the commands are only read.
set -euo pipefail

scripts=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# What setup says for a distribution holds each of these texts, and not those that begin with a "!".
says() { # TITLE OS-RELEASE TEXT...
    local title=$1 said text
    printf '%s\n' "$2" >"$work/os-release"
    shift 2
    said=$(MPSSHIM_OS_RELEASE=$work/os-release "$scripts/setup" --commands --tests ${launchers:+--launchers})
    for text in "$@"; do
        if [[ $text == !* ]]; then
            [[ $said != *"${text#!}"* ]] || { printf '%s: "%s" is said, and should not be:\n%s\n' "$title" "${text#!}" "$said" >&2; failed=1; }
        else
            [[ $said == *"$text"* ]] || { printf '%s: "%s" is not said:\n%s\n' "$title" "$text" "$said" >&2; failed=1; }
        fi
    done
}

nvidia=https://developer.download.nvidia.com/compute/cuda/repos
says 'Debian 12' $'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"' \
    'On Debian GNU/Linux 12 (bookworm), as root:' 'apt-get install --no-install-recommends g++ ' libcli11-dev libclang-rt-dev \
    "$nvidia/debian12/x86_64/cuda-keyring_1.1-1_all.deb" 'cuda-nvcc-13-0 cuda-cudart-dev-13-0 cuda-driver-dev-13-0' '!too old' '!dnf'
says 'Ubuntu 24.04' $'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble' \
    'apt-get update' "$nvidia/ubuntu2404/x86_64/" '!slurm' '!mpi'
launchers=yes says 'Ubuntu 24.04 with launchers' $'ID=ubuntu\nVERSION_ID="24.04"' 'openmpi-bin mpich munge slurm-client slurmctld slurmd podman runc'
if MPSSHIM_OS_RELEASE=/dev/null "$scripts/setup" --commands --launchers >"$work/said" 2>&1 || ! grep -q 'for Debian and its kin' "$work/said"; then
    printf 'launchers elsewhere: %s\n' "$(cat "$work/said")" >&2
    failed=1
fi
says 'a derivative of Ubuntu' $'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID="22"\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble' \
    'apt-get update' "$nvidia/ubuntu2404/x86_64/"
says 'a derivative of Debian that NVIDIA does not know' $'ID=devuan\nID_LIKE=debian\nVERSION_CODENAME=excalibur' \
    'apt-get update' 'from https://developer.nvidia.com/cuda-downloads' '!cuda-keyring'
says 'Fedora' $'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"' \
    "dnf install gcc-c++ make cmake ninja-build python3 util-linux binutils boost-devel cli11-devel 'cmake(Catch2)' spdlog-devel" \
    "dnf config-manager addrepo --from-repofile=$nvidia/fedora42/x86_64/cuda-fedora42.repo" 'cuda-cudart-devel-13-0' compiler-rt '!epel' '!too old'
says 'Rocky 9' $'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4"' \
    'dnf install epel-release' 'dnf config-manager --set-enabled crb' 'dnf install gcc-toolset-13 python3.11' \
    "dnf config-manager --add-repo $nvidia/rhel9/x86_64/cuda-rhel9.repo" '!addrepo'
says 'RHEL 10' $'ID="rhel"\nID_LIKE="centos fedora"\nVERSION_ID="10.0"' \
    'subscription-manager repos --enable codeready-builder-for-rhel-10-x86_64-rpms' "$nvidia/rhel10/x86_64/" '!too old'
says 'Leap' $'ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"' \
    'zypper install gcc-c++ make cmake ninja python3' libboost_headers-devel 'zypper install gcc13-c++ python311' \
    "zypper addrepo $nvidia/opensuse15/x86_64/cuda-opensuse15.repo" '!compiler-rt'
says 'Tumbleweed' $'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\nVERSION_ID="20251101"' 'zypper install gcc-c++' '!too old'
says 'Arch' $'ID=arch\nPRETTY_NAME="Arch Linux"' 'pacman -S --needed gcc make cmake ninja python ' 'pacman -S --needed cuda' /opt/cuda/bin
says 'another' $'ID=nixos\nPRETTY_NAME="NixOS 24.11"' 'On NixOS 24.11' "Debian's names) g++ make" libzstd-dev \
    'from https://developer.nvidia.com/cuda-downloads'

# Where g++ and ninja are missing and there is no apt-get: an error that has the commands, for what is missing alone.
mkdir "$work/bin"
for tool in bash dirname basename readlink sed cat mktemp make cmake python3 flock readelf; do
    path=$(command -v "$tool") && ln -s "$path" "$work/bin/$tool"
done
printf 'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora Linux 42"\n' >"$work/os-release"
for option in '' --check; do
    status=0
    said=$(PATH=$work/bin MPSSHIM_OS_RELEASE=$work/os-release bash "$scripts/setup" $option 2>&1) || status=$?
    if ((status != 1)) || [[ $said != *'On Fedora Linux 42, as root:'*'dnf install gcc-c++ ninja-build'* ]]; then
        printf 'setup %s without g++, ninja and apt-get ended with %s and said:\n%s\n' "$option" "$status" "$said" >&2
        failed=1
    fi
done
exit "$failed"
