#!/usr/bin/env bash
# A whole Slurm on this machine, for trying things out: one controller, one node, loopback only, all in one folder.
#
#   scripts/slurm_single_node.sh start DIR    then: export SLURM_CONF=DIR/slurm.conf; sinfo
#   scripts/slurm_single_node.sh stop DIR
#
# DIR must be short (sockets live there). Needs root, and Debian's packages slurmctld, slurmd, slurm-client and munge.
set -euo pipefail

fail() { echo "slurm_single_node: $*" >&2; exit 1; }

[ $# = 2 ] || fail "expected 'start DIR' or 'stop DIR', but got: $*"
action=$1 dir=$(realpath -m "$2")

stop() {
    [ -e "$dir/slurm.conf" ] || fail "no Slurm was started in $dir"
    export SLURM_CONF=$dir/slurm.conf
    if timeout 60 squeue --noheader --format=%A >"$dir/jobs" 2>/dev/null && [ -s "$dir/jobs" ]; then
        xargs scancel <"$dir/jobs" || true  # jobs outlive slurmd
        for _ in $(seq 50); do [ -n "$(timeout 60 squeue --noheader 2>/dev/null)" ] || break; sleep 0.2; done
    fi
    for name in slurmd slurmctld munged; do
        [ -s "$dir/$name.pid" ] || continue
        pid=$(cat "$dir/$name.pid")
        ours "$pid" && kill "$pid"
        for _ in $(seq 50); do ours "$pid" || break; sleep 0.1; done
        if ours "$pid"; then kill -9 "$pid"; fi
    done
}

# Only what was started here is ended: the process must have been told of our folder.
ours() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "$dir/"; } 2>/dev/null

start() {
    missing=()
    for program in munged:munge mungekey:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client; do
        command -v "${program%:*}" >/dev/null || missing+=("${program#*:}")
    done
    [ ${#missing[@]} = 0 ] || fail "not installed: $(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')." \
        "As root: apt-get update && apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    [ "$(id -u)" = 0 ] || fail "expected root (slurmd starts jobs as their users), but this is $(id -un)"

    mkdir -p "$dir"/{state,spool,log}
    chmod 755 "$dir" "$dir"/{state,spool,log}
    host=$(hostname -s) cores=$(nproc)
    [ -s "$dir/munge.key" ] || mungekey --create --keyfile "$dir/munge.key"
    read -r ctld slurmd <<<"$(python3 -c '
import socket
a, b = socket.socket(), socket.socket()
for s in (a, b): s.bind(("127.0.0.1", 0))
print(a.getsockname()[1], b.getsockname()[1])')"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=single
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$ctld
SlurmdPort=$slurmd
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# A requeued job waits until its old credential has expired.
AuthInfo=socket=$dir/munge.sock,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
# A node that is slow to answer, on a machine that is busy with its jobs, is not lost.
SlurmdTimeout=600
SlurmctldTimeout=600
KillWait=5
MinJobAge=60
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$dir/slurm.conf
    munged --force --key-file "$dir/munge.key" --socket "$dir/munge.sock" --pid-file "$dir/munged.pid" \
        --log-file "$dir/log/munged.log" --seed-file "$dir/munge.seed" || fail "munged did not start: $dir/log/munged.log"
    slurmctld -c -f "$SLURM_CONF" || fail "slurmctld did not start: $(tail -n 3 "$dir/log/slurmctld.log")"
    slurmd -f "$SLURM_CONF" -N "$host" || fail "slurmd did not start: $(tail -n 3 "$dir/log/slurmd.log")"
    for _ in $(seq 600); do
        [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && { echo "export SLURM_CONF=$SLURM_CONF"; return; }
        sleep 0.2
    done
    fail "the node did not become idle within 120 s: $(sinfo 2>&1; tail -n 3 "$dir"/log/*.log)"
}

case $action in
    start) start || { stop; exit 1; } ;;
    stop) stop ;;
    *) fail "expected 'start DIR' or 'stop DIR', but got: $*" ;;
esac
