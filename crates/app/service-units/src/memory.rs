//! Units that lift a service's memory while it runs, as it fills.
//!
//! The service itself stays as it is: a drop-in file has it want a second service, which starts and ends with it and executes
//! `pagelift attach --watch`. A third one aligns new mappings of shared memory.

use crate::words::quoted;

/// Name of the drop-in file of the service.
pub const MEMORY_FILE_NAME: &str = "zz-pagelift-memory.conf";
/// The unit that has shared mappings aligned while any service needs that.
pub const ALIGNMENT_UNIT: &str = "pagelift-shared-alignment.service";

const TITLE: &str = "# Written by `pagelift enable`. `pagelift disable` removes it.";
const UNIT: &str = "# Unit: ";
const KINDS: &str = "# Memory: ";
const LAUNCHER: &str = "# Program: ";
/// Start of the name of a unit that lifts.
const PREFIX: &str = "pagelift-memory-";
const SHARED: &str = "shared";

/// A service whose memory is lifted in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUnits {
    /// The service; of a template, its name with `@.`.
    pub unit: String,
    /// Kinds of memory, by the words of `--lift`.
    pub kinds: Vec<String>,
    /// The path of the `pagelift` that lifts it.
    pub launcher: String,
}

impl MemoryUnits {
    /// Reads the file of a unit that lifts; `None` if it was not written by this.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(TITLE)?.strip_prefix('\n')?;
        let comments = rest.lines().take_while(|line| line.starts_with("# "));
        let value = |name: &str| comments.clone().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let kinds = value(KINDS)?.split(',').map(str::to_owned).collect();
        Some(Self { unit: value(UNIT)?, kinds, launcher: value(LAUNCHER)? })
    }

    /// True if this is the name of a unit that lifts.
    pub fn is_name(name: &str) -> bool {
        name.starts_with(PREFIX) && name.ends_with(".service")
    }

    /// True if Pagelift has written a file with this text.
    pub fn is_own_text(text: &str) -> bool {
        text.strip_prefix(TITLE).is_some_and(|rest| rest.starts_with('\n'))
    }

    /// Name of the unit that lifts.
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", self.unit)
    }

    /// Name of the unit that lifts this service, or this instance of the template.
    pub fn name_for(&self, service: &str) -> String {
        format!("{PREFIX}{service}")
    }

    /// True if shared memory is among the kinds.
    pub fn has_shared(&self) -> bool {
        self.kinds.iter().any(|kind| kind == SHARED)
    }

    /// Text of the service's drop-in file.
    pub fn drop_in(&self) -> String {
        let aligned =
            if self.has_shared() { format!(" {ALIGNMENT_UNIT}\nAfter={ALIGNMENT_UNIT}") } else { String::new() };
        format!("{TITLE}\n\n[Unit]\nWants={PREFIX}{}{aligned}\n", self.instance())
    }

    /// Text of the unit that lifts.
    pub fn text(&self) -> String {
        let Self { unit, launcher, .. } = self;
        let (kinds, instance) = (self.kinds.join(","), self.instance());
        let program = quoted(launcher, true);
        let service = quoted(unit, true).replace("@.", "@%i.");
        // A seccomp filter on the helper would hide the service's own filter, which a lift of files has to read.
        let reads_filters = self.kinds.iter().any(|kind| kind == "files");
        let (more, sandbox) = match reads_filters {
            true => (" CAP_SYS_ADMIN", ""),
            false => ("", "RestrictAddressFamilies=AF_UNIX\nLockPersonality=yes\nRestrictRealtime=yes\n"),
        };
        // Bound, it ends with the service whatever ends that, and a new start of the service wants it again.
        format!(
            "{TITLE}\n{UNIT}{unit}\n{KINDS}{kinds}\n{LAUNCHER}{launcher}\n\
             [Unit]\nDescription=Huge pages for memory of {instance}\nDocumentation=man:pagelift-attach(1)\n\
             BindsTo={instance}\nAfter={instance}\n\n\
             [Service]\nType=exec\nExecStart={program} attach --watch --lift {kinds} --unit {service}\n\
             Restart=on-failure\nRestartSec=30\nNice=10\nMemoryMax=512M\n\
             CapabilityBoundingSet=CAP_SYS_PTRACE CAP_CHECKPOINT_RESTORE CAP_SYS_NICE CAP_SYS_RESOURCE CAP_DAC_OVERRIDE CAP_KILL{more}\n\
             NoNewPrivileges=yes\nProtectSystem=strict\nProtectHome=read-only\n{sandbox}"
        )
    }

    /// The service as its own units name it: of a template, the instance at hand.
    fn instance(&self) -> String {
        self.unit.replace("@.", "@%i.")
    }
}

/// Text of [`ALIGNMENT_UNIT`]. It changes `never` only, and restores `never` only if it had changed it.
pub fn alignment_unit() -> String {
    let set = "if grep -qF \"[never]\" $f; then echo advise >$f && touch $was; fi";
    let back = "if test -e $was && grep -qF \"[advise]\" $f; then echo never >$f; fi; rm -f $was";
    let line = |commands: &str| {
        format!(
            "/bin/sh -c 'f=/sys/kernel/mm/transparent_hugepage/shmem_enabled; was=/run/pagelift-shmem-was-never; {}'",
            commands.replace('$', "$$")
        )
    };
    format!(
        "{TITLE}\n\
         [Unit]\nDescription=Alignment of shared memory to huge pages\nStopWhenUnneeded=yes\n\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart={}\nExecStop={}\n",
        line(set),
        line(back)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(unit: &str, kinds: &[&str]) -> MemoryUnits {
        MemoryUnits {
            unit: unit.to_owned(),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            launcher: "/opt/a b%/pagelift".to_owned(),
        }
    }

    #[test]
    fn a_unit_that_lifts_is_read_again() {
        for (unit, kinds) in [("a.service", &["anon"][..]), ("p@.service", &["shared", "jit"])] {
            let units = units(unit, kinds);
            assert_eq!(MemoryUnits::parse(&units.text()), Some(units.clone()));
            assert!(MemoryUnits::is_name(&units.name()) && MemoryUnits::is_own_text(&units.drop_in()));
        }
        assert_eq!(MemoryUnits::parse("[Unit]\n"), None);
        assert!(!MemoryUnits::is_own_text("[Unit]\n") && MemoryUnits::is_own_text(&alignment_unit()));
    }

    /// LockPersonality= and similar settings are seccomp filters.
    #[test]
    fn a_lift_of_files_can_read_the_filters_of_the_service() {
        let (files, others) = (units("a.service", &["files"]).text(), units("a.service", &["anon"]).text());
        assert!(
            files.contains(" CAP_SYS_ADMIN\n") && !files.contains("Restrict") && !files.contains("LockPersonality")
        );
        assert!(!others.contains("CAP_SYS_ADMIN") && others.ends_with("\nRestrictRealtime=yes\n"), "{others}");
    }

    #[test]
    fn it_starts_and_ends_with_its_service() {
        let text = units("a.service", &["anon"]).text();
        let command = "\nExecStart=\"/opt/a b%%/pagelift\" attach --watch --lift anon --unit a.service\n";
        assert!(text.contains(command) && text.contains("\nBindsTo=a.service\nAfter=a.service\n"), "{text}");
        let drop_in = units("a.service", &["anon"]).drop_in();
        assert!(drop_in.ends_with("[Unit]\nWants=pagelift-memory-a.service\n"), "{drop_in}");
    }

    #[test]
    fn an_instance_of_a_template_has_its_own() {
        let units = units("p@.service", &["shared"]);
        assert_eq!(
            (units.name().as_str(), units.name_for("p@1.service").as_str()),
            ("pagelift-memory-p@.service", "pagelift-memory-p@1.service")
        );
        assert!(units.text().contains(" --unit p@%i.service\n"), "{}", units.text());
        let wanted = "Wants=pagelift-memory-p@%i.service pagelift-shared-alignment.service\n\
                      After=pagelift-shared-alignment.service\n";
        assert!(units.drop_in().ends_with(wanted), "{}", units.drop_in());
    }
}
