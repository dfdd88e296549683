# `pagelift doctor` if only a reboot helps; the last of the checks, because nothing can be traced after it.
feature "doctor: tracing forbidden until a reboot"
scope=/proc/sys/kernel/yama/ptrace_scope
if [ -e $scope ]; then
    # The file that makes this setting; the fix must override it.
    mkdir -p /etc/sysctl.d
    echo "kernel.yama.ptrace_scope = 3" >/etc/sysctl.d/99-tracing.conf
    echo 3 >$scope
    finds "doctor: ptrace_scope 3" "no process may trace another" "kernel.yama.ptrace_scope = 3"
    finds "doctor: ptrace_scope 3 stays until a reboot" "then reboot: Linux does not lower 3 before that"
    sh -c "$(fix_of "no process may trace another")"
    # Files in the order of the next boot, sorted by name; the last one wins.
    next=$(sed -n 's/^kernel.yama.ptrace_scope = //p' /etc/sysctl.d/*.conf | tail -n 1)
    if [ "$next" = 1 ]; then
        ok "doctor: with its fix the next boot sets 1"
    else
        failed "doctor: with its fix the next boot sets $next"
    fi
    echo 1 >$scope 2>/dev/null
    [ "$(cat $scope)" = 3 ] && ok "doctor: Linux does not let go of 3" || failed "doctor: ptrace_scope is $(cat $scope)"
fi
