#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The installed units under a real systemd, for this test alone: the first program starts the broker, which serves all users and bears what the unit
# takes from it, is restarted in place, reloaded, ended, and started again after a crash and after a hang.
# Usage: check_systemd.sh BUILD_TREE DRIVER. Exit status 77: it cannot run here, with the reason.
set -euo pipefail

build=$1 driver=$2
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}
systemd=/usr/lib/systemd/systemd
[[ -x $systemd ]] || systemd=/lib/systemd/systemd

# Beside PID 1 of a namespace, which is systemd.
drive() {
    exec >"$work/told" 2>&1
    local home=/run/installed pid next
    fail() {
        printf 'FAILED: %s\n' "$*"
        systemctl --no-pager -l status mpsshim.service mpsshim.socket || true
        tail -n 20 /var/log/mpsshim/*.log || true
        echo 1 >"$work/status"
        exit 1
    }
    trap 'fail "line $LINENO"' ERR
    wait_for() { # SECONDS COMMAND...
        local tries=$(($1 * 20))
        shift
        while ((tries-- > 0)); do
            "$@" >/dev/null 2>&1 && return 0
            sleep 0.05
        done
        return 1
    }
    client() { # PREFIX...
        local output
        output=$(timeout 60 "$@" env LD_LIBRARY_PATH=$home/lib/mpsshim/libcuda MPSSHIM_REQUIRE=1 "$build/bin/process1" 2>&1) || fail "a client of $*: $output"
        [[ $output == *'Process 1 done.'* ]] || fail "a client of $* said: $output"
    }
    is() { [[ $(systemctl show -P "$1" mpsshim.service) == "$2" ]] || fail "$1 is $(systemctl show -P "$1" mpsshim.service), and not $2"; }
    main_pid() { systemctl show -P MainPID mpsshim.service; }
    has_another_pid() { [[ $(main_pid) != "$pid" && $(systemctl show -P ActiveState mpsshim.service) == active ]]; }

    if ! wait_for 20 test -S /run/systemd/private || ! wait_for 20 systemctl is-active basic.target; then
        echo "no systemd comes up in a namespace of this machine"
        echo 77 >"$work/status"
        exit
    fi
    systemctl start mpsshim.socket
    is ActiveState inactive
    client
    is ActiveState active
    is StatusText "Serves all users in /run/mpsshim."
    client setpriv --reuid 65534 --clear-groups
    pid=$(main_pid)
    [[ $(awk '/^NoNewPrivs/ { print $2 }' "/proc/$pid/status") == 1 ]] || fail "the unit's hardening is not in force"
    # An executor has addresses that are not randomised (0x0040000), which the unit must not forbid.
    [[ $((16#$(cat "/proc/$("$home/bin/mpsctl" get_server_list | head -n 1)/personality") & 16#40000)) != 0 ]] || fail "executors have random addresses"

    "$home/bin/mpsctl" restart
    is MainPID "$pid"
    is ActiveState active
    systemctl reload mpsshim.service
    is ActiveState active
    client
    "$home/bin/mpsctl" quit
    wait_for 10 systemctl show -P ActiveState mpsshim.service
    is Result success
    is NRestarts 0
    client # the socket has stayed

    pid=$(main_pid)
    kill -9 "$pid"
    wait_for 20 has_another_pid || fail "no broker after a crash"
    client
    pid=$(main_pid)
    kill -STOP "$pid"
    wait_for 40 has_another_pid || fail "no broker after a hang"
    client
    systemctl stop mpsshim.service
    is Result success
    [[ -S /run/mpsshim/mpsshim.sock && ! -e /run/mpsshim/control.sock ]] || fail "sockets: $(ls /run/mpsshim)"
    systemctl stop mpsshim.socket
    [[ ! -e /run/mpsshim/mpsshim.sock ]] || fail "the socket has stayed"
    echo 0 >"$work/status"
}

if [[ -n ${MPSSHIM_IN_NAMESPACE:-} ]]; then
    work=$MPSSHIM_IN_NAMESPACE
    mount --make-rprivate /
    [[ $(stat -fc %T /sys/fs/cgroup) != cgroup2fs ]] || mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t proc proc /proc
    for folder in /run /var/log /var/cache; do mount -t tmpfs tmpfs $folder; done
    DESTDIR='' cmake --install "$build" --prefix /run/installed >/dev/null
    echo "MPSBROKER_OPTIONS=\"--driver $driver\"" >/run/installed/etc/default/mpsshim
    # No unit of the machine's: ours, and the names that they are ordered by.
    units=/run/units
    cp -r /run/installed/lib/systemd/system $units
    mkdir -p /run/systemd/system $units/mpsshim.service.d
    printf '[Service]\nWatchdogSec=2\n' >$units/mpsshim.service.d/test.conf
    for target in basic sysinit sockets shutdown umount; do
        printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target >$units/$target.target
    done
    drive &
    export container=lxc SYSTEMD_UNIT_PATH=$units SYSTEMD_LOG_TARGET=null
    exec "$systemd" --system --unit=basic.target --show-status=0
fi

((EUID == 0)) || skip "another systemd needs root"
[[ -x $systemd ]] && command -v systemctl >/dev/null || skip "systemd is not installed"
for groups in /sys/fs/cgroup/systemd /sys/fs/cgroup; do
    [[ $(stat -fc %T $groups 2>/dev/null) == cgroup*fs ]] && break
done
work=$(mktemp -d /tmp/mpsshim-systemd.XXXXXX)
group=$groups/${work##*/}
mkdir "$group" 2>/dev/null || { rm -rf "$work"; skip "no group of processes can be made in $groups"; }
(
    echo "$BASHPID" >"$group/cgroup.procs"
    MPSSHIM_IN_NAMESPACE=$work exec setsid unshare --mount --pid --fork --cgroup --ipc --uts --kill-child -- "${BASH_SOURCE[0]}" "$@" >"$work/log" 2>&1
) &
namespace=$!
finish() {
    kill -9 $(pgrep -P $namespace) $namespace 2>/dev/null || true # PID 1 of the namespace, and with it all that is in it
    wait $namespace 2>/dev/null || true
    for _ in {1..100}; do # groups can be removed when their last process is gone
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
        [[ -d $group ]] || break
        sleep 0.05
    done
    rm -rf "$work"
}
trap finish EXIT
for _ in {1..3600}; do
    [[ ! -s $work/status ]] && kill -0 $namespace 2>/dev/null || break
    sleep 0.05
done
status=$(cat "$work/status" 2>/dev/null || echo 1)
[[ $status == 0 ]] || cat "$work/told" "$work/log" 2>/dev/null || true
((status != 77)) || printf 'skipped: see above\n'
((status != 0)) || echo passed
exit "$status"
