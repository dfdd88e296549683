//! The memory of a virtual machine, lifted on its host while the machine runs.

use crate::{huge_bytes, lift, number};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use test_support::{Context, Initramfs, Need, Session, Test, VirtualMachine, poll_until, target_folder, test_case};

/// Memory of the machine, in MiB.
const MEMORY: u32 = 512;
/// Contents that the machine keeps in its memory, in MiB.
const CONTENTS: u64 = 96;
/// An emulated machine boots in a few seconds; other processes may use the same CPUs.
const LIMIT: Duration = Duration::from_secs(300);
/// Prints the hash of contents in its memory, and again after each line of input.
const INIT: &str = "#!/bin/sh
export PATH=/bin
mkdir -p /proc
mount -t proc none /proc
dd if=/bin/busybox of=/block bs=1M count=1 2>/dev/null
n=0
while [ $n -lt CONTENTS ]; do echo $n; cat /block; n=$((n + 1)); done >/contents
while :; do
    echo HASH $(md5sum </contents)
    read -r line || break
done
poweroff -f
";

pub fn tests(needs: impl Fn() -> Vec<Need>) -> Vec<Test> {
    let files = [kernel(), PathBuf::from(BUSYBOX)].map(|file| Need::File(file.to_string_lossy().into_owned()));
    let more = [Need::Command("qemu-system-x86_64".into()), Need::Machine("x86_64".into())];
    let needs = || [needs(), files.to_vec(), more.to_vec()].concat();
    vec![
        test_case("memory_of_a_virtual_machine/file", needs(), lifted),
        test_case("memory_of_a_virtual_machine/memfd", needs(), refused),
    ]
}

const BUSYBOX: &str = "/bin/busybox";

fn kernel() -> PathBuf {
    target_folder().join("test-kernels/linux-6.1-amd64")
}

fn initramfs() -> Result<Vec<u8>> {
    let mut initramfs = Initramfs::default();
    initramfs.add_file("/bin/busybox", &fs::read(BUSYBOX)?);
    for applet in ["sh", "mkdir", "mount", "dd", "cat", "md5sum", "poweroff"] {
        initramfs.add_link(&format!("/bin/{applet}"), "busybox");
    }
    initramfs.add_folder("/dev");
    initramfs.add_file("/init", INIT.replace("CONTENTS", &CONTENTS.to_string()).as_bytes());
    Ok(initramfs.finish())
}

/// Boots a machine with such a memory backend, until it has contents.
fn machine(t: &Context, backend: &str) -> Result<Session> {
    let file = t.folder().join("initramfs");
    fs::write(&file, initramfs()?)?;
    let machine = VirtualMachine {
        architecture: "x86_64",
        kernel: kernel(),
        initramfs: file,
        nodes: vec![MEMORY],
        boot: "",
        more_cpus: 0,
        disks: Vec::new(),
    };
    let mut command = machine.command();
    command.arg("-object").arg(format!("{backend},id=ram,size={MEMORY}M,share=on"));
    command.args(["-machine", "memory-backend=ram"]);
    let session = t.session_within(command, LIMIT)?;
    waits_for_hashes(&session, 1)?;
    Ok(session)
}

fn hashes(session: &Session) -> Vec<String> {
    let console = session.whole_lines_so_far().replace('\r', "");
    console.lines().filter_map(|line| line.strip_prefix("HASH ")).map(str::to_owned).collect()
}

fn waits_for_hashes(session: &Session, count: usize) -> Result<()> {
    poll_until(LIMIT, "a hash", || hashes(session).len() >= count).with_context(|| session.stdout_so_far())
}

/// The machine finds the contents of its memory as before.
fn lifted(t: &Context) -> Result<()> {
    // QEMU removes the name of a file that it has made in a folder.
    let mut session = machine(t, "memory-backend-file,mem-path=/dev/shm,align=2M")?;
    let (output, shared) = lift(t, session.pid(), &[])?;
    let (said, segment) = (output.success()?.stderr, &shared["segments"][0]);
    ensure!(segment["kind"] == "file" && number(segment, "length")? == u64::from(MEMORY) << 20, "{segment}");
    let bytes = huge_bytes(session.pid())?;
    // Blocks that the machine uses in part are left alone.
    ensure!(
        bytes >= (CONTENTS << 20) / 4 * 3 && bytes == number(segment, "huge_after")?,
        "{bytes} bytes are huge: {said}"
    );
    session.send("again\n")?;
    waits_for_hashes(&session, 2)?;
    let found = hashes(&session);
    ensure!(found[0] == found[1], "{found:?}");
    Ok(())
}

/// QEMU itself chooses an address that no huge page fits.
fn refused(t: &Context) -> Result<()> {
    let session = machine(t, "memory-backend-memfd")?;
    let (output, _) = lift(t, session.pid(), &[])?;
    let said = output.success()?.stderr;
    ensure!(said.contains("left alone: address and offset disagree by "), "{said}");
    ensure!(huge_bytes(session.pid())? == 0, "huge: {said}");
    Ok(())
}
