#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The scripts of examples/deployment for batch systems, called as those call them: what a job gets by them, and that nothing is left. Slurm's with a real
# slurmd: check_slurm.sh. PBS is played here; so are nvidia-smi, pbsnodes and logger, which say what they were asked.
# Usage: check_batch_scripts.sh SOURCE_TREE BUILD_TREE DRIVER. Exit status 77: it cannot run here, with the reason.
set -euo pipefail

scripts=$1/examples/deployment bin=$2/bin driver=$3
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}
((EUID == 0)) || skip "prologues run as root"
if [[ -z ${MPSSHIM_IN_NAMESPACE:-} ]]; then
    MPSSHIM_IN_NAMESPACE=1 unshare --mount --pid --fork --mount-proc --kill-child -- "${BASH_SOURCE[0]}" "$@" && exit 0 || exit $?
fi
mount --make-rprivate /
mount -t tmpfs tmpfs /run
work=$(mktemp -d /tmp/mpsshim-batch.XXXXXX)
chmod 755 "$work"
trap 'rm -rf -- "$work"' EXIT
fail() {
    printf 'FAILED: %s\n' "$*"
    cat "$work/said" "$work/asked" 2>/dev/null || true
    exit 1
}
mkdir "$work/tools"
for tool in nvidia-smi pbsnodes logger; do
    printf '#!/bin/sh\necho "%s $*" >>"%s/asked"\n[ ! -e "%s/%s-fails" ]\n' $tool "$work" "$work" $tool >"$work/tools/$tool"
    chmod 755 "$work/tools/$tool"
done
asked() { grep -qx "$1" "$work/asked" || fail "nobody has asked: $1"; }

as_system() { # SCRIPT ARGUMENT...: with no more environment than such a system gives
    local script=$1
    shift
    env -i PATH="$work/tools:/usr/sbin:/usr/bin:/sbin:/bin" MPSSHIM_BIN="$bin" MPSBROKER_OPTIONS="--driver $driver" "${system[@]}" "$scripts/$script" "$@" \
        >>"$work/said" 2>&1
}
job() { # VARIABLE=VALUE...: a program of nobody's in it, which needs the broker that is there
    local output
    output=$(cd / && setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH=/usr/bin:/bin HOME=/nonexistent MPSRUN_DRIVER=/nonexistent/driver "$@" \
        "$bin/mpsrun" "$bin/process1" 2>&1) || return 1
    [[ $output == *'Process 1 done.'* ]]
}
brokers() { { pgrep -f 'mpsbroker -d' || true; } | wc -l; }
nothing_is_left() { [[ $(brokers) == 0 && -z $(ls /run/mpsshim 2>/dev/null) ]] || fail "$1 is left: $(brokers) brokers, $(ls /run/mpsshim)"; }
for script in slurm-prolog slurm-epilog pbs-prologue pbs-epilogue; do sh -n "$scripts/$script" || fail "$script is no script"; done

# PBS: job, user, group, name, limits, queue, account.
system=()
as_system pbs-prologue 1.server nobody nogroup name limits queue "" || fail "a job that asks for nothing"
[[ ! -e /run/mpsshim/job-1.server && ! -e $work/asked ]] || fail "a job that asks for nothing gets a broker"
as_system pbs-prologue '7[2].server' nobody nogroup name limits queue "project mps=true" || fail "pbs-prologue"
asked "nvidia-smi -c 3"
[[ $(brokers) == 1 && $(stat -c '%U %a' /run/mpsshim/job-7_2_.server) == "nobody 700" ]] || fail "not one broker: $(ls -l /run/mpsshim)"
[[ $(ps -o user= -p "$(pgrep -f 'mpsbroker -d')") == nobody ]] || fail "the broker is not the user's"
job PBS_JOBID='7[2].server' || fail "a program of the job is not served"
! job PBS_JOBID=8.server || fail "a program of another job is served"
as_system pbs-epilogue '7[2].server' nobody nogroup name session limits used queue account 0 || fail "pbs-epilogue"
nothing_is_left pbs-epilogue
asked "nvidia-smi -c 0"
! grep -q pbsnodes "$work/asked" || fail "a good node is taken out"
touch "$work/nvidia-smi-fails"
as_system pbs-epilogue 9.server || fail "pbs-epilogue of a job without a broker"
asked "pbsnodes -o -N Epilogue check: nvidia-smi failed $(hostname)"
rm "$work/nvidia-smi-fails"
! as_system pbs-prologue 11.server nobody-of-that-name nogroup name limits queue MPS=true || fail "a job of nobody's gets a broker"
as_system pbs-epilogue 11.server
nothing_is_left "a job that was refused"

# Slurm.
slurm() { system=(SLURM_JOB_ID=42 SLURM_JOB_USER=nobody SLURM_JOB_UID=65534 "$@"); }
slurm
as_system slurm-prolog || fail "a job that asks for nothing"
slurm SLURM_JOB_CONSTRAINTS=nompsshim,mpsshims
as_system slurm-prolog || fail "a job that asks for something else"
[[ $(brokers) == 0 ]] || fail "a job that asks for nothing gets a broker"
slurm 'SLURM_JOB_CONSTRAINTS=gpu&mpsshim'
as_system slurm-prolog || fail "slurm-prolog"
[[ $(brokers) == 1 ]] || fail "not one broker"
job SLURM_JOB_ID=42 SLURM_STEP_ID=0 || fail "a program of the job is not served"
as_system slurm-epilog || fail "slurm-epilog"
nothing_is_left slurm-epilog
as_system slurm-epilog || fail "slurm-epilog of a job without a broker"
echo passed
