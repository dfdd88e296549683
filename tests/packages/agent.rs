//! A removal of the Debian package ends its agent and leaves the lifts, which a purge undoes. An agent of another
//! installation and its state stay, also if that agent does not run at the time of the purge.

use crate::root::Root;
use anyhow::Result;
use test_support::{Context, PackageKind, Program, copy_program, pack};

const RULES: &str = "[agent]
mode = \"act\"
scan = \"200ms\"
settle = \"0s\"
overhead = \"100%\"
cpu = \"100%\"
max_pause = \"10s\"
max_cpu_pressure = \"100%\"
max_memory_pressure = \"100%\"
min_free_memory = \"0%\"
[[rule]]
name = \"server\"
match = { exe = \"/opt/server\" }
pages = \"thp\"
keep = \"always\"
";

/// Lifts a server by the package's agent, and removes and purges the package while the server runs. Locks alone are no
/// state of others. The agent of a copy runs during another purge, and has ended before a third one. The last two are of
/// state that both have used, and of state from before the marks.
const STEPS: &str = "huge() { awk '/^AnonHugePages:/ { sum += $2 } END { print sum + 0 }' /proc/$server/smaps; }
    soon() { for _ in $(seq 1800); do if \"$@\"; then return; fi; sleep 0.1; done; echo \"$* does not hold\"; cat /tmp/said; exit 1; }
    dpkg -i /new/pagelift_*.deb >/dev/null
    mkfifo /tmp/input && exec 3<>/tmp/input
    /opt/server <&3 >/tmp/output &
    server=$!
    soon grep -q ready /tmp/output
    pagelift agent run 2>/tmp/said &
    agent=$!
    soon grep -q 'lifted server' /tmp/said
    test $(huge) -gt 0
    soon test -e /run/pagelift/agent/status.json
    cp /usr/bin/pagelift /opt/pagelift
    dpkg -r pagelift >/dev/null
    wait $agent
    test ! -e /usr/bin/pagelift
    test $(huge) -gt 0
    dpkg -P pagelift >/tmp/said 2>&1
    cat /tmp/said
    grep -q 'restored server' /tmp/said
    test $(huge) = 0
    test ! -e /var/lib/pagelift
    test ! -e /run/pagelift/agent
    test -z \"$(ls /var/lib/misc/pagelift* 2>/dev/null)\"
    dpkg -i /new/pagelift_*.deb >/dev/null
    pagelift agent stop --restore
    test -e /run/pagelift/agent/worker.lock
    dpkg -P pagelift >/dev/null
    test ! -e /run/pagelift/agent
    dpkg -i /new/pagelift_*.deb >/dev/null
    /opt/pagelift agent run 2>/tmp/said &
    agent=$!
    soon test -e /run/pagelift/agent/lifts.json
    purge() { dpkg -P pagelift >/tmp/purged 2>&1; test ! -e /var/lib/pagelift/restore; }
    stays() {
        grep -q \"^pagelift: /run/pagelift/agent is not removed: another installation\" /tmp/purged
        test -e /run/pagelift/agent/lifts.json
    }
    purge
    stays
    kill $agent
    wait $agent
    dpkg -i /new/pagelift_*.deb >/dev/null
    purge
    stays
    dpkg -i /new/pagelift_*.deb >/dev/null
    pagelift agent run 2>/tmp/said &
    agent=$!
    soon grep -q '^package ' /run/pagelift/agent/installations
    soon grep -q \"pid.*$agent\" /run/pagelift/agent/status.json
    purge
    wait $agent
    stays
    rm -r /run/pagelift/agent/installations
    dpkg -i /new/pagelift_*.deb >/dev/null
    purge
    stays
    echo >&3
    soon grep -q 'all right' /tmp/output
    kill $server";

pub fn purged(t: &Context) -> Result<()> {
    let packages = pack(t, PackageKind::Deb, "1")?;
    let root = Root::new(t)?;
    root.bring("new", &packages)?;
    copy_program(t, &Program::named("agent/serves_from_large_code.c")?.build()?, &root.path().join("opt/server"))?;
    root.write("etc/pagelift/agent.d/50-server.toml", RULES)?;
    root.run(t, STEPS)
}
