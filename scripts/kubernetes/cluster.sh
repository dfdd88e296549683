# Sourced by scripts/test-kubernetes: a control plane and one kubelet on this machine, all files below $work.
# shellcheck shell=bash
# Programs are found in $bin and $root; `start_cluster` sets $node and exports KUBECONFIG.

node=node-1
started=()
# Folders in whose place the cluster has its own.
own_places="/run/pagelift /var/lib/pagelift /var/lib/kubelet /var/lib/cni /run/containerd /run/netns /var/log"
# Those that the host did not have.
made=()
# Settings that the kubelet would change for the whole machine.
kubelet_settings="vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes"

# Starts a program in the background: NAME COMMAND...
start() {
    local name=$1
    shift
    "$@" >"$work/log/$name.log" 2>&1 </dev/null &
    started+=($!)
}

# Polls a command until it succeeds: SECONDS WHAT COMMAND...
wait_for() {
    local until=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || { echo "  not within its time: $what"; return 1; }
        sleep 0.5
    done
}

free_port() {
    local port
    while :; do
        port=$((RANDOM % 20000 + 20000))
        ss -Hltn "sport = :$port" | grep -q . || { echo $port; return; }
    done
}

# The host's own state, logs and settings stay as they are. Called in a mount namespace of the test's own.
separate_from_host() {
    local place setting
    for place in $own_places; do
        [ -d "$place" ] || { mkdir "$place" && made+=("$place"); }
        mkdir -p "$work/host$place"
        mount --bind "$work/host$place" "$place" || return 1
    done
    for setting in $kubelet_settings; do
        mkdir -p "$work/host/sys/${setting%/*}"
        cat "/proc/sys/$setting" >"$work/host/sys/$setting"
        mount --bind "$work/host/sys/$setting" "/proc/sys/$setting" || return 1
    done
}

write_kubeconfig() {
    cat >"$work/kubeconfig" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$1", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
END
    export KUBECONFIG=$work/kubeconfig
}

start_control_plane() {
    local etcd peer server
    etcd=$(free_port) peer=$(free_port) server=$(free_port)
    token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    echo "$token,admin,admin,system:masters" >"$work/tokens"
    openssl genrsa -out "$work/accounts.key" 2048 2>/dev/null || return 1
    start etcd "$root/usr/bin/etcd" --data-dir "$work/etcd" --listen-peer-urls "http://127.0.0.1:$peer" \
        --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
        --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer"
    start apiserver "$bin/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd" --bind-address 127.0.0.1 \
        --secure-port "$server" --advertise-address 192.0.2.1 --endpoint-reconciler-type none --cert-dir "$work/certificates" \
        --token-auth-file "$work/tokens" --authorization-mode RBAC --service-cluster-ip-range 10.0.0.0/24 \
        --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$work/accounts.key" \
        --service-account-signing-key-file "$work/accounts.key" --disable-admission-plugins TaintNodesByCondition \
        --feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true
    write_kubeconfig "$server"
    wait_for 180 "the API server" kubectl get --raw /readyz || return 1
    # Nodes that have no kubelet are left alone.
    start controllers "$bin/kube-controller-manager" --kubeconfig "$KUBECONFIG" --bind-address 127.0.0.1 \
        --secure-port "$(free_port)" --leader-elect=false --service-account-private-key-file "$work/accounts.key" \
        --root-ca-file "$work/certificates/apiserver.crt" --controllers \
        daemonset-controller,serviceaccount-controller,root-ca-certificate-publisher-controller,namespace-controller,garbage-collector-controller
    start scheduler "$bin/kube-scheduler" --kubeconfig "$KUBECONFIG" --bind-address 127.0.0.1 --secure-port "$(free_port)" \
        --leader-elect=false
}

# A network plugin that gives pods the address of no interface: nothing here connects to them.
write_network() {
    mkdir -p "$work/cni/bin" "$work/cni/net.d"
    cat >"$work/cni/bin/none" <<'END'
#!/bin/sh
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"0.3.1","supportedVersions":["0.3.1"]}' && exit
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"0.3.1","interfaces":[{"name":"'"$CNI_IFNAME"'","sandbox":"'"$CNI_NETNS"'"}],
"ips":[{"version":"4","address":"192.0.2.2/32","interface":0}]}'
END
    chmod 755 "$work/cni/bin/none"
    cp "$work/cni/bin/none" "$work/cni/bin/loopback"
    echo '{"cniVersion":"0.3.1","name":"none","plugins":[{"type":"none"}]}' >"$work/cni/net.d/10-none.conflist"
}

start_containerd() {
    write_network
    cat >"$work/containerd.toml" <<END
version = 2
root = "$work/containerd"
state = "$work/containerd-state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.restart"]
[grpc]
address = "$work/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "$work/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:test"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$work/cni/bin"
conf_dir = "$work/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$root/usr/sbin/runc"
END
    start containerd env "PATH=$root/usr/bin:$root/usr/sbin:$PATH" "$root/usr/bin/containerd" --config "$work/containerd.toml"
    wait_for 60 containerd ctr version
}

ctr() { "$root/usr/bin/ctr" --address "$work/containerd.sock" --namespace k8s.io "$@"; }

start_kubelet() {
    cat >"$work/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: "$work/certificates/apiserver.crt"}}
authorization: {mode: AlwaysAllow}
address: 127.0.0.1
port: $(free_port)
healthzPort: 0
containerRuntimeEndpoint: "unix://$work/containerd.sock"
podLogsDir: "$work/log/pods"
volumePluginDir: "$work/volume-plugins"
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
syncFrequency: 5s
imageMinimumGCAge: 24h
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
END
    start kubelet "$bin/kubelet" --config "$work/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir "$work/kubelet" \
        --cert-dir "$work/kubelet-certificates" --hostname-override "$node"
    wait_for 120 "the node to be ready" kubectl wait --for=condition=Ready "node/$node" --timeout=1s
}

# A cgroup is busy until the kernel has ended its last process, which may be after SIGKILL.
remove_cgroups() {
    local place left=0
    for place in /sys/fs/cgroup/{kubepods,*/kubepods,*/k8s.io}; do
        [ ! -d "$place" ] || find "$place" -depth -type d -exec rmdir {} +
        [ ! -d "$place" ] || left=1
    done
    return $left
}

# Ends everything that was started. The runtime's shims have left the process tree.
stop_cluster() {
    local pid
    for pid in "${started[@]}"; do [ "${pid}" = "${started[0]}" ] || kill "$pid" 2>/dev/null; done
    for pid in $(pgrep -f "containerd-shim-runc-v2 .*$work"); do
        # shellcheck disable=SC2046 # several children
        kill -KILL $(cat "/proc/$pid/task/$pid/children") "$pid" 2>/dev/null
    done
    [ ${#started[@]} = 0 ] || kill "${started[0]}" 2>/dev/null
    wait 2>/dev/null
    wait_for 20 "the cgroups of the pods are removed" remove_cgroups
}
