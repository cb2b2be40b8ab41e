#!/bin/bash
# Runs the binary under supervisord and under runit, with the service files that lie beside this script, and
# sees what the README says of signals and exit codes:
#
#     packaging/check-supervised.sh BINARY
#
# Needs `supervisor` and `runit` (Debian); everything lives in a temporary directory, no service of the
# machine is touched, and only processes that were started here are signalled, by their id.
set -eu

binary=$(realpath "${1:?usage: check-supervised.sh BINARY}")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
started=()      # what to end if a check fails
mode=           # supervisord or runit

say() { printf '%s: %s\n' "$mode" "$*"; }

fail() {
    say "FAILED: $*" >&2
    tail -n 40 "$work"/log/* 2>/dev/null >&2 || true
    exit 1
}

# until_ok SECONDS WHAT COMMAND…
until_ok() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" 2>/dev/null; do
        [ $SECONDS -lt $end ] || fail "not within its time: $what"
        sleep 0.1
    done
}

# Supervisors by the ids we were given; runners by their binary, which lies in our directory; scripts of jobs
# by our directory's name in their environment.
cleanup() {
    local pid
    for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    for pid in /proc/[0-9]*; do
        case $(readlink "$pid/exe" 2>/dev/null) in
        "$work"/*) kill -KILL "${pid#/proc/}" 2>/dev/null || true ;;
        esac
    done
    for pid in $(cat "$work"/pid-* 2>/dev/null); do
        if grep -qaF "$work" "/proc/$pid/environ" 2>/dev/null; then kill -KILL "$pid" || true; fi
    done
    rm -rf "$work"
}
trap cleanup EXIT

# ---- One supervisor, three verbs ------------------------------------------------------------------

place() { sed -e "s|/usr/local/bin/runner|$work/bin/runner|" -e "s|/etc/runner/config.toml|$work/config.toml|" \
    -e "s|/var/log/runner|$work/log/runner|" "$1"; }

ctl() { supervisorctl -c "$work/supervisord.conf" "$@"; }

supervise() {
    case $mode in
    supervisord)
        cat >"$work/supervisord.conf" <<CONF
[unix_http_server]
file=$work/supervisor.sock
[supervisord]
nodaemon=true
logfile=$work/log/supervisord.log
pidfile=$work/supervisord.pid
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://$work/supervisor.sock
CONF
        place "$here/supervisord/runner.conf" >>"$work/supervisord.conf"
        supervisord -c "$work/supervisord.conf" >/dev/null </dev/null &
        ;;
    runit)
        local file
        for file in run finish control/t log/run; do
            install -D -m 755 /dev/null "$work/sv/$file"
            place "$here/runit/$file" >"$work/sv/$file"
        done
        # The shipped finish, with a note of what it was given.
        mv "$work/sv/finish" "$work/sv/finish.shipped"
        printf '#!/bin/sh\necho "finished: $1 $2" >>%s/log/finish\nexec ./finish.shipped "$@"\n' "$work" >"$work/sv/finish"
        chmod 755 "$work/sv/finish"
        runsv "$work/sv" >"$work/log/runsv" 2>&1 </dev/null &
        ;;
    esac
    supervisor=$!
    started+=("$supervisor")
    until_ok 30 "the runner starts" is_up
}

dismiss() {
    case $mode in
    supervisord) kill -TERM "$supervisor" ;;
    runit) sv -w 45 exit "$work/sv" >/dev/null ;;
    esac
    wait "$supervisor" || true
}

is_up() {
    case $mode in
    supervisord) ctl status runner | grep -q RUNNING ;;
    runit) sv status "$work/sv" | grep -q '^run: [^;]*) [0-9]*s' ;;
    esac
}

runner_pid() {
    case $mode in
    supervisord) ctl pid runner ;;
    runit) cat "$work/sv/supervise/pid" ;;
    esac
}

# Down for good, by the runner's own exit with this code.
is_down() {
    case $mode in
    supervisord) ctl status runner | grep -qE 'EXITED|STOPPED' && grep -q "runner (exit status $1" <(tail -n 2 "$work/log/supervisord.log") ;;
    runit) sv status "$work/sv" | grep -q '^down:' && [ "$(tail -n 1 "$work/log/finish")" = "finished: $1 0" ] ;;
    esac
}

signal() {
    case $mode-$1 in
    supervisord-*) ctl signal "$1" runner >/dev/null ;;
    runit-QUIT) sv quit "$work/sv" >/dev/null ;;
    runit-USR2) sv 2 "$work/sv" >/dev/null ;;
    esac
}

up() {
    case $mode in
    supervisord) ctl start runner >/dev/null || true ;;
    runit) sv -w 10 up "$work/sv" >/dev/null ;;
    esac
    until_ok 30 "the runner starts again" is_up
}

down() {
    case $mode in
    supervisord) ctl stop runner >/dev/null ;;
    runit) sv -w 45 stop "$work/sv" >/dev/null || fail "sv stop waited in vain" ;;
    esac
}

# ---- Jobs -------------------------------------------------------------------------------------------

# A job that says hello, waits until go-NAME is there, and says goodbye.
submit() {
    printf '{"script": ["echo $$ >%s/pid-%s; echo hello %s", "while [ ! -e %s/go-%s ]; do sleep 0.1; done; echo goodbye %s"]}\n' \
        "$work" "$1" "$1" "$work" "$1" "$1" >"$work/new.json"
    mv "$work/new.json" "$work/spool/pending/$1.json"
}
let_go() { touch "$work/go-$1"; }
runs() { until_ok 30 "job $1 runs" test -s "$work/pid-$1"; }
ended() {
    until_ok 60 "job $1 is reported" test -s "$work/spool/done/$1/result.json"
    grep -qE "\"state\": *\"$2\"" "$work/spool/done/$1/result.json" || fail "job $1: $(cat "$work/spool/done/$1/result.json")"
}
log_says() { grep -q "$2" "$work/spool/done/$1/log" || fail "the log of job $1 lacks '$2': $(cat "$work/spool/done/$1/log")"; }
# A zombie that waits for a lazy init is gone, too.
gone() { ! grep -qsE '^[0-9]+ \(.*\) [^ZX]' "/proc/$(cat "$work/pid-$1")/stat"; }

no_zombie_of() {
    ! grep -hsE "^[0-9]+ \(.*\) Z $1 " /proc/[0-9]*/stat
}

# ---- The checks --------------------------------------------------------------------------------------

check_all() {
    local pid

    submit one; let_go one
    ended one success
    log_says one 'goodbye one'
    say "runs a job"

    submit two; runs two
    pid=$(runner_pid)
    # The binary is replaced first, as an upgrade does: the old image then counts as deleted.
    cp "$binary" "$work/bin/runner.next"
    mv "$work/bin/runner.next" "$work/bin/runner"
    signal USR2
    until_ok 30 "the new image" new_image "$pid"
    let_go two
    ended two success
    log_says two 'hello two'
    log_says two 'goodbye two'
    [ "$(runner_pid)" = "$pid" ] || fail "USR2 changed the pid"
    is_up || fail "USR2 ended the service"
    until_ok 5 "no zombie after the hand-over" no_zombie_of "$pid"
    say "USR2 during a job: same pid, new image, job succeeded, no zombie"

    submit three; runs three
    kill -KILL "$pid"
    until_ok 30 "it is started again" changed "$pid"
    let_go three
    ended three success
    log_says three 'goodbye three'
    until_ok 30 "it stays up" is_up
    say "killed during a job: started again, job succeeded"

    submit four; runs four
    down
    until_ok 5 "a stop ends with 0" is_down 0
    ended four failed
    gone four || fail "the stopped job's script lives"
    say "stopped during a job: job reported as failed, nothing left, exit 0, stays down"

    up
    submit five; runs five
    signal QUIT
    sleep 1
    ! gone five || fail "a drain ended a running job"
    submit six
    let_go five
    until_ok 30 "a drain ends with 0 and is not started again" is_down 0
    ended five success
    [ -e "$work/spool/pending/six.json" ] || fail "a draining runner took another job"
    rm "$work/spool/pending/six.json"
    say "QUIT during a job: job succeeded, no other was taken, exit 0, stays down"

    if [ $mode = runit ]; then
        up
        touch "$work/sv/drain"
        submit seven; runs seven
        sv -w 1 stop "$work/sv" >/dev/null && fail "a stop with ./drain did not wait for the job"
        let_go seven
        until_ok 30 "the drain by control/t ends" is_down 0
        ended seven success
        rm "$work/sv/drain"
        say "stop with ./drain: job succeeded"
    fi

    cp "$work/config.toml" "$work/config.good"
    echo 'concurrent = "many"' >"$work/config.toml"
    case $mode in
    supervisord)
        ctl start runner >/dev/null || true
        until_ok 30 "FATAL after a wrong configuration" is_fatal
        ;;
    runit)
        sv up "$work/sv" >/dev/null || true
        until_ok 10 "a wrong configuration ends with 78 and stays down" is_down 78
        ;;
    esac
    say "wrong configuration: not started over and over"
    mv "$work/config.good" "$work/config.toml"
}

# Only root may look at what a runner runs; its own words are for everybody.
new_image() {
    if [ "$(id -u)" = 0 ] && [ "$(readlink "/proc/$1/exe")" != "$work/bin/runner" ]; then return 1; fi
    grep -rqs 'adopted from an earlier run' "$work/log"
}
changed() { local now; now=$(runner_pid) && [ -n "$now" ] && [ "$now" != 0 ] && [ "$now" != "$1" ] && kill -0 "$now"; }
is_fatal() { ctl status runner | grep -q FATAL; }

for tool in supervisord supervisorctl runsv sv svlogd; do
    command -v $tool >/dev/null || { echo "$tool is missing; on Debian: apt-get install supervisor runit" >&2; exit 1; }
done
for mode in supervisord runit; do
    rm -rf "${work:?}"/*
    mkdir -p "$work/bin" "$work/log" "$work/spool/pending"
    cp "$binary" "$work/bin/runner"
    cat >"$work/config.toml" <<CONF
concurrent = 2
check_interval = 1
shutdown_timeout = 20
state_dir = "$work/state"

[[runners]]
name = "supervised"
url = "file://$work/spool"
executor = "shell"
builds_dir = "$work/builds"
CONF
    supervise
    check_all
    dismiss
done
echo "supervised: all checks passed"
