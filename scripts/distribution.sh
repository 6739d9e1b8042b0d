# SPDX-License-Identifier: Apache-2.0
# What to type on this distribution for packages that are missing, and for a CUDA Toolkit. Sourced by scripts/setup.
# Packages go by Debian's names everywhere else; this is the one place that knows the others.
# shellcheck shell=bash

cuda_packages_version=13-0 # what the project is tested with; 12.4 is the oldest that it takes
cuda_repositories=https://developer.download.nvidia.com/compute/cuda/repos
cuda_downloads=https://developer.nvidia.com/cuda-downloads

# Sets os_family (debian, fedora, rhel, suse, arch or other), os_id, os_version, os_codename and os_name from os-release(5).
find_distribution() { # [FILE]
    local file=${1:-/etc/os-release} id
    local -a facts
    [[ -r $file || -n ${1:-} ]] || file=/usr/lib/os-release
    os_family=other os_id='' os_version='' os_codename='' os_name='this distribution'
    [[ -r $file ]] || return 0
    # The file is shell text: it is read in a shell of its own, so that it sets nothing here.
    mapfile -t facts < <(
        ID='' ID_LIKE='' VERSION_ID='' VERSION_CODENAME='' UBUNTU_CODENAME='' PRETTY_NAME=''
        # shellcheck disable=SC1090
        source "$file"
        printf '%s\n' "$ID" "$ID_LIKE" "$VERSION_ID" "${UBUNTU_CODENAME:-$VERSION_CODENAME}" "${PRETTY_NAME:-$ID}"
    )
    os_id=${facts[0]} os_version=${facts[2]} os_codename=${facts[3]} os_name=${facts[4]}
    for id in $os_id ${facts[1]}; do
        case $id in
            debian | ubuntu) os_family=debian ;;
            rhel | centos | rocky | almalinux | ol) os_family=rhel ;;
            fedora) os_family=fedora ;;
            suse | opensuse* | sles) os_family=suse ;;
            arch) os_family=arch ;;
            *) continue ;;
        esac
        break
    done
}

# Sets `native` to the name of a package, given Debian's, in the family that was found. Empty: another package of the list has it.
native_package() { # NAME
    native=$1
    # Debian's                     Fedora, RHEL     openSUSE                 Arch
    local row
    for row in \
        'g++             gcc-c++          gcc-c++                  gcc' \
        'ninja-build     ninja-build      ninja                    ninja' \
        'python3         python3          python3                  python' \
        'libboost-dev    boost-devel      libboost_headers-devel   boost' \
        'libcli11-dev    cli11-devel      cli11-devel              cli11' \
        'catch2          cmake(Catch2)    cmake(Catch2)            catch2' \
        'libspdlog-dev   spdlog-devel     spdlog-devel             spdlog' \
        'libfmt-dev      fmt-devel        fmt-devel                fmt' \
        'liblz4-dev      lz4-devel        liblz4-devel             lz4' \
        'libzstd-dev     libzstd-devel    libzstd-devel            zstd' \
        'libtomlplusplus-dev tomlplusplus-devel tomlplusplus-devel tomlplusplus' \
        'libclang-rt-dev compiler-rt      -                        compiler-rt' \
        'clang-tidy      clang-tools-extra clang-tools             -' \
        'python3-yaml    python3-pyyaml   python3-PyYAML           python-yaml' \
        'python3-jsonschema python3-jsonschema python3-jsonschema  python-jsonschema' \
        'clang-format    git-clang-format -                        -'; do
        local -a names
        read -r -a names <<<"$row"
        [[ ${names[0]} == "$1" ]] || continue
        case $os_family in
            fedora | rhel) native=${names[1]} ;;
            suse) native=${names[2]#-} ;;
            arch) native=${names[3]#-} ;;
        esac
        return
    done
}

# Prints the commands that install these packages, one a line.
package_commands() { # PACKAGE (Debian's names)...
    local name native list=''
    for name in "$@"; do
        native_package "$name"
        [[ $native != *[\(\)]* ]] || native="'$native'"
        list+=${native:+ $native}
    done
    case $os_family in
        debian) printf 'apt-get update\napt-get install --no-install-recommends%s\n' "$list" ;;
        fedora) printf 'dnf install%s\n' "$list" ;;
        rhel)
            # CLI11, Catch2 and spdlog are in EPEL, some of what they need in the repository that Red Hat calls CodeReady Builder.
            if [[ $os_id == rhel ]]; then
                printf 'subscription-manager repos --enable codeready-builder-for-rhel-%s-x86_64-rpms\n' "${os_version%%.*}"
                printf 'dnf install https://dl.fedoraproject.org/pub/epel/epel-release-latest-%s.noarch.rpm\n' "${os_version%%.*}"
            else
                printf 'dnf install epel-release dnf-plugins-core\n'
                if [[ ${os_version%%.*} == 8 ]]; then
                    printf 'dnf config-manager --set-enabled powertools\n'
                else
                    printf 'dnf config-manager --set-enabled crb\n'
                fi
            fi
            printf 'dnf install%s\n' "$list"
            ;;
        suse) printf 'zypper install%s\n' "$list" ;;
        arch) printf 'pacman -S --needed%s\n' "$list" ;;
        other) printf '(with its package manager; these are Debian'\''s names)%s\n' "$list" ;;
    esac
}

# Prints what more is needed where the distribution's own compiler or Python is too old (g++ 12, Python 3.11), by the user who builds.
newer_tools_commands() {
    case $os_family:${os_version%%.*} in
        rhel:8 | rhel:9)
            printf 'dnf install gcc-toolset-13 python3.11     # as root\n'
            # shellcheck disable=SC2016
            printf 'mkdir -p ~/.local/bin && ln -sf "$(command -v python3.11)" ~/.local/bin/python3\n'
            # shellcheck disable=SC2016
            printf 'export PATH=~/.local/bin:/opt/rh/gcc-toolset-13/root/usr/bin:$PATH\n'
            ;;
        suse:15)
            printf 'zypper install gcc13-c++ python311     # as root\n'
            # shellcheck disable=SC2016
            printf 'mkdir -p ~/.local/bin && ln -sf "$(command -v python3.11)" ~/.local/bin/python3\n'
            # shellcheck disable=SC2016
            printf 'export PATH=~/.local/bin:$PATH CC=gcc-13 CXX=g++-13\n'
            ;;
    esac
}

# Prints the folder of NVIDIA's package repository for this distribution, or nothing.
cuda_repository() {
    case $os_family in
        debian)
            case $os_id:$os_codename in
                ubuntu:*) printf 'ubuntu%s' "${os_version//./}" ;;
                debian:*) printf 'debian%s' "${os_version%%.*}" ;;
                *:noble) printf 'ubuntu2404' ;;
                *:jammy) printf 'ubuntu2204' ;;
                *:bookworm) printf 'debian12' ;;
            esac
            ;;
        fedora) [[ $os_id != fedora ]] || printf 'fedora%s' "$os_version" ;;
        rhel) printf 'rhel%s' "${os_version%%.*}" ;;
        suse) if [[ $os_id == sles ]]; then printf 'sles%s' "${os_version%%.*}"; else printf 'opensuse15'; fi ;;
    esac
}

# Prints the commands that install what is needed of the CUDA Toolkit: nvcc, the runtime and the driver's headers, not the driver.
cuda_commands() {
    local repository kind=devel
    repository=$(cuda_repository)
    [[ $os_family != debian ]] || kind=dev
    local packages="cuda-nvcc-$cuda_packages_version cuda-cudart-$kind-$cuda_packages_version cuda-driver-$kind-$cuda_packages_version"
    # shellcheck disable=SC2016
    case $os_family:$repository in
        arch:*) printf 'pacman -S --needed cuda\nexport PATH=/opt/cuda/bin:$PATH     # or log in anew\n' ;;
        *:) printf '(from %s: a package repository for your distribution, or the runfile)\n' "$cuda_downloads" ;;
        debian:*)
            printf 'apt-get install --no-install-recommends ca-certificates wget\n'
            printf 'wget %s/%s/x86_64/cuda-keyring_1.1-1_all.deb\n' "$cuda_repositories" "$repository"
            printf 'dpkg -i cuda-keyring_1.1-1_all.deb\napt-get update\napt-get install --no-install-recommends %s\n' "$packages"
            ;;
        fedora:*)
            printf 'dnf config-manager addrepo --from-repofile=%s/%s/x86_64/cuda-%s.repo\n' "$cuda_repositories" "$repository" "$repository"
            printf 'dnf install %s\n' "$packages"
            ;;
        rhel:*)
            printf 'dnf install dnf-plugins-core\n'
            printf 'dnf config-manager --add-repo %s/%s/x86_64/cuda-%s.repo\n' "$cuda_repositories" "$repository" "$repository"
            printf 'dnf install %s\n' "$packages"
            ;;
        suse:*)
            printf 'zypper addrepo %s/%s/x86_64/cuda-%s.repo\nzypper refresh\n' "$cuda_repositories" "$repository" "$repository"
            printf 'zypper install %s\n' "$packages"
            ;;
    esac
}
