# `pagelift doctor` where nothing helps before a reboot; the last of the checks, since nothing can be traced after it.
feature "doctor: tracing forbidden until a reboot"
scope=/proc/sys/kernel/yama/ptrace_scope
if [ -e $scope ]; then
    # What the fix looks for.
    mkdir -p /etc/sysctl.d
    echo "kernel.yama.ptrace_scope = 3" >/etc/sysctl.d/99-tracing.conf
    echo 3 >$scope
    finds "doctor: ptrace_scope 3" "no process may trace another" "kernel.yama.ptrace_scope = 3"
    finds "doctor: ptrace_scope 3 stays until a reboot" "set 1 in the file that this shows, and reboot"
    shown=$(sh -c "$(fix_of "no process may trace another")")
    case $shown in
        *99-tracing.conf:kernel.yama.ptrace_scope*) ok "doctor: its fix shows the file" ;;
        *) failed "doctor: its fix shows $shown" ;;
    esac
    echo 1 >$scope 2>/dev/null
    [ "$(cat $scope)" = 3 ] && ok "doctor: Linux does not let go of 3" || failed "doctor: ptrace_scope is $(cat $scope)"
fi
