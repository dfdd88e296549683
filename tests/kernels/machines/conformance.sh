# Both executors pass the common suite: the one for its own process, and the one for a stopped process.
mkdir -p /run/lock
pool 0

# conforms NAME PROGRAM WORDS...: its last lines give the number of passed checks.
conforms() {
    name=$1
    shift
    "$@" >/tmp/out 2>&1
    status=$?
    ran=$(sed -n 's/^\(.*[^0-9]\)*\([0-9][0-9]*\) \(checks \)*passed.*/\2/p' /tmp/out | head -n 1)
    # A third of the checks needs a pool and transparent huge pages.
    if [ $status = 0 ] && [ "${ran:-0}" -ge 20 ]; then
        ok "$name: $ran checks"
    else
        failed "$name: status $status, ${ran:-no} checks: $(tail -n 8 /tmp/out | tr '\n' '|')"
    fi
}

feature "conformance of executors"
conforms "on its own process" conformance_inside
conforms "on a stopped process" conformance_outside --nocapture --exact remote::conforms::the_executor_on_a_stopped_process_conforms
[ "$(cat $pool_file)" = 0 ] && ok "conformance gives the pool back" || failed "conformance leaves $(cat $pool_file) pages"
