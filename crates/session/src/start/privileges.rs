//! Set-user-ID programs that are followed.

use nix::libc;
use process_view::{ProcessFiles, executed_metadata};
use std::os::unix::fs::MetadataExt;

/// Bit of a capability that lets a tracer follow such programs (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

/// Returns the reason if a set-user-ID program has lost its privileges because an unprivileged process traced its exec
/// (execve(2)).
pub fn lost_privileges(pid: i32) -> Option<String> {
    let process = ProcessFiles::of(pid);
    let file = executed_metadata(&process)?;
    let owner = (file.mode() & libc::S_ISUID != 0).then_some(file.uid())?;
    let own = ProcessFiles::of(std::process::id() as i32).text("status").ok()?;
    reason(&process.text("status").ok()?, &own, owner)
}

/// As [`lost_privileges`], from `/proc/PID/status` of the program and of its tracer. With `no_new_privs` it would run
/// without the owner's rights in any case.
fn reason(program: &str, tracer: &str, owner: u32) -> Option<String> {
    let effective: u32 = field(program, "Uid")?.split_whitespace().nth(1)?.parse().ok()?;
    let is_unprivileged = u64::from_str_radix(field(tracer, "CapEff")?, 16).ok()? >> CAP_SYS_PTRACE & 1 == 0;
    let could_gain = field(program, "NoNewPrivs") != Some("1");
    (effective != owner && is_unprivileged && could_gain).then(|| {
        format!(
            "it is set-user-ID but runs without those rights, since an unprivileged tracer follows it; \
             needed: root, or a start outside of `pagelift run --only` (uid {owner} wanted, {effective} found)"
        )
    })
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tracer_without_its_capability_takes_rights_away() {
        let status = |user: u32, limited: u32| format!("Uid:\t7\t{user}\t7\t7\nNoNewPrivs:\t{limited}\n");
        let (nobody, root) = ("CapEff:\t0000000000000000\n", "CapEff:\t000001ffffffffff\n");
        let said = reason(&status(7, 0), nobody, 0).unwrap();
        assert!(said.contains("(uid 0 wanted, 7 found)"), "{said}");
        assert_eq!(reason(&status(0, 0), nobody, 0), None);
        assert_eq!(reason(&status(7, 1), nobody, 0), None);
        assert_eq!(reason(&status(7, 0), root, 0), None);
    }
}
