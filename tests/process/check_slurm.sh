#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A real slurmctld and slurmd on this machine, for this test alone: what Slurm does to processes of a step is Slurm's to decide.
#   - two overlapping steps of a job, the first shorter: the second lives, each with a broker of its own
#   - mpsrun --job in the batch shell: one broker for all steps, which ends with the job
#   - a prologue that starts a broker for the job, an epilogue that ends it
# Usage: check_slurm.sh BUILD_TREE DRIVER. Exit status 77: it cannot run here, with the reason.
set -euo pipefail

bin=$1/bin driver=$2
scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../examples/deployment" && pwd)
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}
for program in slurmctld slurmd srun sbatch scontrol munged; do
    command -v "$program" >/dev/null 2>&1 || skip "$program is not installed (slurmctld, slurmd, slurm-client, munge)"
done
((EUID == 0)) || skip "slurmd needs root"
{ pgrep -x slurmd || pgrep -x slurmctld; } >/dev/null && skip "a slurmd or slurmctld runs already"

# In a namespace of our own: /etc/slurm, /run and its pids are the test's, and all ends with it.
if [[ -z ${MPSSHIM_IN_NAMESPACE:-} ]]; then
    MPSSHIM_IN_NAMESPACE=1 unshare --mount --pid --fork --mount-proc --kill-child -- "${BASH_SOURCE[0]}" "$@" && exit 0 || status=$?
    exit "$status"
fi
work=$(mktemp -d /tmp/mpsshim-slurm.XXXXXX)
chmod 755 "$work"
trap 'rm -rf -- "$work"' EXIT
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/munge /run/mpsshim
fail() {
    printf 'FAILED: %s\n' "$*"
    tail -n 20 "$work"/*.log "$work"/out* 2>/dev/null || true
    exit 1
}
wait_for() { # SECONDS COMMAND...
    local tries=$(($1 * 20))
    shift
    while ((tries-- > 0)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}

head -c 128 /dev/urandom >"$work/munge.key"
chmod 400 "$work/munge.key"
mkdir -p -m 700 "$work/munge"
munged --force --key-file="$work/munge.key" --log-file="$work/munge/log" --seed-file="$work/munge/seed" --pid-file="$work/munge/pid" \
    --socket=/run/munge/munge.socket.2 >"$work/munged.log" 2>&1 || fail "munged did not start"
host=$(hostname -s)
mkdir -p "$work/etc" "$work/state" "$work/spool"
cat >"$work/etc/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket.2
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmctldPort=16817
SlurmdPort=16818
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
Prolog=$work/prolog
Epilog=$work/epilog
PrologFlags=Alloc
KillWait=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 Feature=mpsshim State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
mkdir -p /etc/slurm
mount --bind "$work/etc" /etc/slurm
# Those of examples/deployment, with what an administrator would set.
for script in prolog epilog; do
    cat >"$work/$script" <<SCRIPT
#!/bin/sh
exec env -u LD_PRELOAD MPSSHIM_BIN="$bin" MPSBROKER_OPTIONS="--driver $driver" "$scripts/slurm-$script" >>"$work/$script.log" 2>&1
SCRIPT
done
chmod 755 "$work/prolog" "$work/epilog"
slurmctld -f /etc/slurm/slurm.conf >"$work/ctld.log" 2>&1 || fail "slurmctld did not start"
slurmd -f /etc/slurm/slurm.conf -N "$host" >"$work/d.log" 2>&1 || fail "slurmd did not start"
is_idle() { [[ $(sinfo -h -o %T) == idle ]]; }
wait_for 30 is_idle || fail "the node does not become idle: $(sinfo 2>&1)"

unset CUDA_MPS_PIPE_DIRECTORY XDG_RUNTIME_DIR
export MPSRUN_DRIVER=$driver
brokers() { pgrep -f 'mpsbroker -d' | wc -l; }
no_broker() { [[ $(brokers) == 0 ]]; }
run_job() { # NAME SCRIPT [OPTION...]
    local name=$1
    printf '#!/bin/bash\n%s\n' "$2" >"$work/$name.sh"
    shift 2
    sbatch --wait -n 4 --overcommit "$@" -o "$work/out.$name" "$work/$name.sh" >"$work/$name.log" 2>&1
}

# 1. Steps of their own.
run_job steps "srun -n 2 --overlap $bin/mpsrun $bin/process1 2 & first=\$!
sleep 0.5
srun -n 2 --overlap $bin/mpsrun $bin/process1 8 & second=\$!
sleep 1.5; echo brokers \$(pgrep -f 'mpsbroker -d' | wc -l)
wait \$first && echo first over; wait \$second && echo second over" || fail "two overlapping steps: the job failed"
grep -q '^first over' "$work/out.steps" || fail "the first step failed"
grep -q '^second over' "$work/out.steps" || fail "the second step did not live"
[[ $(grep -c 'Process 1 done' "$work/out.steps") == 4 ]] || fail "not all four ranks were done"
grep -q '^brokers 2$' "$work/out.steps" || fail "each step was to have a broker of its own: $(grep brokers "$work/out.steps")"
wait_for 10 no_broker || fail "a step's broker has stayed"

# 2. One for the job.
run_job batch "eval \"\$($bin/mpsrun --job)\"
srun -n 2 --overlap $bin/mpsrun $bin/process1 1; echo pids \$(pgrep -f 'mpsbroker -d')
sleep 4
srun -n 2 --overlap $bin/mpsrun $bin/process1 1; echo pids \$(pgrep -f 'mpsbroker -d')" || fail "mpsrun --job: the job failed"
[[ $(grep -c 'Process 1 done' "$work/out.batch") == 4 ]] || fail "mpsrun --job: not all ranks were done"
[[ $(grep '^pids' "$work/out.batch" | sort -u | wc -l) == 1 && $(grep -m1 '^pids' "$work/out.batch" | wc -w) == 2 ]] ||
    fail "mpsrun --job: not one broker: $(grep '^pids' "$work/out.batch")"
wait_for 10 no_broker || fail "the job's broker has stayed"

# 3. A prologue's.
run_job prologue "srun -n 2 --overlap $bin/mpsrun $bin/process1 1; echo pids \$(pgrep -f 'mpsbroker -d')
$bin/mpsctl --pipe-dir /run/mpsshim/job-\$SLURM_JOB_ID get_server_list >/dev/null && echo by the prologue" -C mpsshim || fail "prologue: the job failed"
grep -q '^by the prologue' "$work/out.prologue" || fail "prologue: no broker of its own"
[[ $(grep -c 'Process 1 done' "$work/out.prologue") == 2 ]] || fail "prologue: not all ranks were done"
[[ $(grep '^pids' "$work/out.prologue" | wc -w) == 2 ]] || fail "prologue: not one broker: $(grep '^pids' "$work/out.prologue")"
wait_for 10 no_broker || fail "the prologue's broker has stayed: $(cat "$work/epilog.log" 2>&1)"

# 4. A step that dies.
run_job dies "srun -n 2 --overlap $bin/mpsrun sh -c 'kill -9 \$\$'" && fail "a step that dies: its status was lost"
wait_for 10 no_broker || fail "the broker of a step that died has stayed"
echo passed
