//! Mounts a store's file system, and writes the configuration that mounts it at the next boot.

mod hugetlbfs;
mod present;
mod replace;
mod uninstall;

pub use present::StoreMode;

use crate::access::ROOT;
use crate::file_system::{DEVICE, Mounted, foreign, mounted_on};
use crate::store::ONLY_ON_REQUEST;
use crate::{FileSystem, Store, StoreError};
use address_space::{PageSize, parse_bytes};
use foreign_text::quoted_path;
use nix::mount::{MsFlags, mount};
use nix::unistd::geteuid;
use replace::replace;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// If the program is missing, for example after its removal, the daily collection is skipped instead of failing
/// (systemd.unit(5)).
const CONDITION: &str = "ConditionFileIsExecutable=";
/// Default share of memory that a tmpfs may take; the kernel's own default is half.
const USUAL_SHARE: StoreSize = StoreSize::Percent(25);

/// A bound for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreSize {
    /// Bytes.
    Bytes(u64),
    /// Percent of memory, or of the pool on hugetlbfs.
    Percent(u8),
}

impl FromStr for StoreSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_suffix('%') {
            return match number.parse() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                _ => Err(format!("`{text}` is no share: write 1% to 100%")),
            };
        }
        match parse_bytes(text) {
            Ok(0) => Err("a store of no bytes holds nothing; write 2G for example".to_owned()),
            Ok(bytes @ ..4096) => Err(format!("found {bytes} bytes, needed a size such as 2G, or a share such as 25%")),
            Ok(bytes) => Ok(Self::Bytes(bytes)),
            Err(error) => Err(format!("{error}, or a share such as 25%")),
        }
    }
}

impl fmt::Display for StoreSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Options for mounting a store.
#[derive(Clone, Debug)]
pub struct StoreMount {
    directory: PathBuf,
    file_system: FileSystem,
    /// Page size of hugetlbfs; `None` is the kernel's default.
    page_size: Option<PageSize>,
    size: Option<StoreSize>,
    /// The size is the present one, which nobody has requested.
    keeps_size: bool,
    /// Permissions of the directory.
    mode: u32,
    /// Lifts may make images in it.
    automatic: bool,
}

impl StoreMount {
    /// A mount on `directory`. `page_size` is for hugetlbfs alone; without `size` a tmpfs is limited to a quarter of
    /// memory and a hugetlbfs to its pool. `mode` is the directory's.
    ///
    /// # Errors
    /// [`StoreError::Unfit`] for a path or a mode that a store cannot have.
    pub fn new(
        directory: &Path,
        file_system: FileSystem,
        page_size: Option<PageSize>,
        size: Option<StoreSize>,
        mode: u32,
    ) -> Result<Self, StoreError> {
        let unfit = |found: String, needed, fix: &str| {
            Err(StoreError::Unfit { path: directory.to_owned(), found, needed, fix: fix.to_owned() })
        };
        // Mount units and fstab escape differently; a plain path needs no escapes.
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+".contains(b);
        let normal = directory.components().collect::<PathBuf>();
        let below_root = directory.is_absolute() && normal.parent().is_some();
        if !below_root || !directory.as_os_str().as_bytes().iter().all(plain) || has_parent_part(directory) {
            let needed = "an absolute path of letters, digits and ._-+ without `..`";
            return unfit("another path".to_owned(), needed, "pagelift image setup --store /run/pagelift/images");
        }
        if !is_fit(mode) {
            let needed = "700 to 755: only root writes";
            return unfit(format!("mode {mode:o}"), needed, "pagelift image setup --mode 755");
        }
        let size = size.or((file_system == FileSystem::Tmpfs).then_some(USUAL_SHARE));
        Ok(Self { directory: normal, file_system, page_size, size, keeps_size: false, mode, automatic: true })
    }

    /// Returns the mount with or without images that lifts make.
    pub fn with_automatic_images(self, automatic: bool) -> Self {
        Self { automatic, ..self }
    }

    /// The mode of the directory, with the bit that forbids automatic images.
    fn whole_mode(&self) -> u32 {
        if self.automatic { self.mode } else { self.mode | ONLY_ON_REQUEST }
    }

    /// Type of the file system, as mount(8) names it.
    pub fn file_system_type(&self) -> &'static str {
        match self.file_system {
            FileSystem::Tmpfs => "tmpfs",
            FileSystem::Hugetlbfs => "hugetlbfs",
        }
    }

    /// The file system's own options.
    fn own_options(&self) -> String {
        let mut options = vec![format!("mode=0{:o}", self.whole_mode()), "uid=0".to_owned(), "gid=0".to_owned()];
        match self.file_system {
            FileSystem::Tmpfs => options.push("huge=always".to_owned()),
            FileSystem::Hugetlbfs => options.extend(self.page_size.map(|size| format!("pagesize={}", size.bytes()))),
        }
        options.extend(self.size.map(|size| format!("size={size}")));
        options.join(",")
    }

    /// The name and the text of a systemd mount unit (systemd.mount(5)).
    pub fn systemd_unit(&self) -> (String, String) {
        let text = format!(
            "[Unit]\n\
             Description=Shared images of programs on huge pages\n\
             Documentation=man:pagelift-image(1)\n\
             \n\
             [Mount]\n\
             What={DEVICE}\n\
             Where={}\n\
             Type={}\n\
             Options=nosuid,nodev,{}\n\
             DirectoryMode=0755\n\
             \n\
             [Install]\n\
             WantedBy=local-fs.target\n",
            self.directory.display(),
            self.file_system_type(),
            self.own_options().replace('%', "%%"),
        );
        (format!("{}.mount", unit_name(&self.directory)), text)
    }

    /// The names and texts of a service that runs `program image gc` for this store, and of a timer that starts it each
    /// day (systemd.timer(5)).
    pub fn collection_units(&self, program: &Path) -> [(String, String); 2] {
        let (directory, name) = (self.directory.display(), format!("{}-gc", unit_name(&self.directory)));
        let service = format!(
            "[Unit]\n\
             Description=Remove shared images of programs that nobody uses\n\
             Documentation=man:pagelift-image(1)\n\
             RequiresMountsFor={directory}\n\
             {CONDITION}{}\n\
             \n\
             [Service]\n\
             Type=oneshot\n\
             TimeoutStartSec=1h\n\
             ExecStart=\"{}\" image gc --store {directory}\n",
            program.display().to_string().replace('%', "%%"),
            escaped(program),
        );
        let timer = "[Unit]\n\
             Description=Remove shared images of programs that nobody uses, each day\n\
             Documentation=man:pagelift-image(1)\n\
             \n\
             [Timer]\n\
             OnCalendar=daily\n\
             RandomizedDelaySec=1h\n\
             \n\
             [Install]\n\
             WantedBy=timers.target\n";
        [(format!("{name}.service"), service), (format!("{name}.timer"), timer.to_owned())]
    }

    /// A line for fstab(5).
    pub fn fstab_line(&self) -> String {
        format!(
            // A boot continues without a store, which cannot be mounted on a kernel without huge pages for tmpfs.
            "{DEVICE} {} {} nosuid,nodev,nofail,x-mount.mkdir=0755,{} 0 0",
            self.directory.display(),
            self.file_system_type(),
            self.own_options()
        )
    }

    /// Mounts the store, or remounts a mounted one with these options.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`], [`StoreError::Unfit`] if something else is mounted there, [`StoreError::NotReplaced`] if a
    /// hugetlbfs with other options is, or [`StoreError::Io`].
    pub fn mount(&self) -> Result<Store, StoreError> {
        if geteuid().as_raw() != ROOT {
            let fix = format!("pagelift image setup --store {}", quoted_path(&self.directory));
            return Err(StoreError::NotPermitted { fix });
        }
        self.make_folders()?;
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        match mounted_on(&self.directory) {
            None => self.refuse_hiding()?,
            Some(Mounted { kind, source, .. }) if source != DEVICE || kind != self.file_system_type() => {
                return Err(self.in_the_way(format!("a {kind} of the source `{source}` mounted there")));
            }
            Some(_) if self.file_system == FileSystem::Tmpfs => flags |= MsFlags::MS_REMOUNT,
            Some(_) => {
                self.mounted_hugetlbfs().map_or(Ok(()), |mounted| self.refuse_other_options(mounted))?;
                return self.open_with_mode();
            }
        }
        let options = self.own_options();
        mount(Some(DEVICE), &self.directory, Some(self.file_system_type()), flags, Some(options.as_str())).map_err(
            |error| {
                let what = format!("mounting {} on {} ({options})", self.file_system_type(), self.directory.display());
                StoreError::io(what, error)
            },
        )?;
        self.open_with_mode()
    }

    /// Sets the directory's mode, which a remount does not change, and opens the store.
    fn open_with_mode(&self) -> Result<Store, StoreError> {
        fs::set_permissions(&self.directory, Permissions::from_mode(self.whole_mode())).map_err(|e| self.failed(e))?;
        Store::open(&self.directory)
    }

    /// Parent folders are searchable by everybody, whatever the umask is.
    fn make_folders(&self) -> Result<(), StoreError> {
        let mut missing: Vec<&Path> = self.directory.ancestors().take_while(|path| !path.exists()).collect();
        missing.reverse();
        for folder in missing {
            fs::create_dir(folder).map_err(|error| self.failed(error))?;
            fs::set_permissions(folder, Permissions::from_mode(0o755)).map_err(|error| self.failed(error))?;
        }
        crate::directory::open_path(&self.directory)
            .map(drop)
            .map_err(|_| self.in_the_way("a symbolic link or a file on the way".to_owned()))
    }

    fn refuse_hiding(&self) -> Result<(), StoreError> {
        let mut entries = fs::read_dir(&self.directory).map_err(|error| self.failed(error))?;
        if entries.next().is_some() { Err(self.in_the_way("a folder with files in it".to_owned())) } else { Ok(()) }
    }

    fn in_the_way(&self, found: String) -> StoreError {
        foreign(&self.directory, found)
    }

    fn failed(&self, error: io::Error) -> StoreError {
        StoreError::io(format!("setting up {}", self.directory.display()), error)
    }

    /// Writes the mount unit and the daily collection by `program` into a folder such as `/etc/systemd/system` and enables
    /// them there. Returns their paths.
    ///
    /// # Errors
    /// As [`Self::check_units`], before any is written; [`StoreError::NotReplaced`] if one is no regular file; [`StoreError::Io`].
    pub fn install_units(&self, folder: &Path, program: &Path) -> Result<Vec<PathBuf>, StoreError> {
        let [service, timer] = self.collection_units(program);
        let texts = [self.systemd_unit().1, service.1, timer.1];
        self.check_units(folder)?;
        let installed = self.unit_names().into_iter().zip(texts).map(|((name, wanted_by), text)| {
            let path = folder.join(&name);
            let failed = |error| StoreError::io(format!("writing {}", path.display()), error);
            fs::create_dir_all(folder).map_err(failed)?;
            replace(&path, text.as_bytes())?;
            wanted_by.map_or(Ok(()), |target| enable_unit(folder, &name, target)).map_err(failed)?;
            Ok(path)
        });
        installed.collect()
    }

    /// Puts the line into an fstab, in place of an older one for the same directory.
    ///
    /// # Errors
    /// [`StoreError::Unfit`] if the fstab mounts something else there, [`StoreError::NotReplaced`] if it is no regular file or
    /// has several hard links, or [`StoreError::Io`].
    pub fn install_fstab_line(&self, fstab: &Path) -> Result<(), StoreError> {
        let failed = |error| StoreError::io(format!("changing {}", fstab.display()), error);
        let old = match fs::read_to_string(fstab) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let mut lines: Vec<String> = Vec::new();
        for line in old.lines() {
            let mut fields = line.split_whitespace();
            let (device, place) = (fields.next().unwrap_or_default(), fields.next().map(Path::new));
            match device {
                comment if comment.starts_with('#') => lines.push(line.to_owned()),
                DEVICE if place == Some(&self.directory) => {}
                other if place == Some(&self.directory) => {
                    return Err(self.in_the_way(format!("a line for {other} in {}", fstab.display())));
                }
                _ => lines.push(line.to_owned()),
            }
        }
        lines.push(self.fstab_line());
        replace(fstab, (lines.join("\n") + "\n").as_bytes())
    }
}

/// Enables a unit for a target.
fn enable_unit(folder: &Path, name: &str, target: &str) -> io::Result<()> {
    let wants = folder.join(format!("{target}.wants"));
    fs::create_dir_all(&wants)?;
    match std::os::unix::fs::symlink(Path::new("..").join(name), wants.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// A path between quotes in a command line of systemd.service(5).
fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for c in path.display().to_string().chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' | '$' => text.extend([c, c]),
            c => text.push(c),
        }
    }
    text
}

/// True for permissions by which only root writes, and root may do everything.
fn is_fit(permissions: u32) -> bool {
    permissions & !0o755 == 0 && permissions & 0o700 == 0o700
}

fn has_parent_part(path: &Path) -> bool {
    path.components().any(|part| part == std::path::Component::ParentDir)
}

/// The name that systemd gives the unit of a path (systemd.unit(5), "String Escaping for Inclusion in Unit Names").
fn unit_name(path: &Path) -> String {
    let text = path.display().to_string();
    let mut name = String::new();
    for (index, c) in text.trim_matches('/').chars().enumerate() {
        match c {
            '/' => name.push('-'),
            '.' if index == 0 => name += "\\x2e",
            c if c.is_ascii_alphanumeric() || c == '_' || c == '.' => name.push(c),
            c => name += &format!("\\x{:02x}", u32::from(c)),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(directory: &str) -> Result<StoreMount, StoreError> {
        StoreMount::new(Path::new(directory), FileSystem::Tmpfs, None, None, 0o755)
    }

    #[test]
    fn units_are_named_as_systemd_escapes_paths() {
        // As `systemd-escape --path` of systemd 252 prints them.
        for (path, name) in [
            ("/run/pagelift/images", "run-pagelift-images"),
            ("/srv/a-b/c_d.e", "srv-a\\x2db-c_d.e"),
            ("/.hidden/x", "\\x2ehidden-x"),
            ("/a+b", "a\\x2bb"),
        ] {
            assert_eq!(unit_name(Path::new(path)), name);
        }
        let (name, text) = on("/run/pagelift/images").unwrap().systemd_unit();
        assert_eq!(name, "run-pagelift-images.mount");
        assert!(text.contains("Where=/run/pagelift/images\n") && text.contains("size=25%%\n"), "{text}");
    }

    #[test]
    fn odd_paths_modes_and_sizes_are_refused() {
        for path in ["/", "relative", "/a b", "/a/../b", "/a\nb", "/a%b", ""] {
            assert!(on(path).is_err(), "{path:?}");
        }
        for mode in [0o777, 0o775, 0o1755, 0o4755, 0o555] {
            assert!(StoreMount::new(Path::new("/x"), FileSystem::Tmpfs, None, None, mode).is_err(), "{mode:o}");
        }
        for size in ["", "0", "0%", "101%", "x", "-1"] {
            assert!(size.parse::<StoreSize>().is_err(), "{size}");
        }
        assert_eq!("2G".parse(), Ok(StoreSize::Bytes(2 << 30)));
    }

    #[test]
    fn a_boot_keeps_that_images_are_made_only_on_request() {
        let mount = on("/run/pagelift/images").unwrap().with_automatic_images(false);
        for text in [mount.fstab_line(), mount.systemd_unit().1] {
            assert!(text.contains("mode=01755,"), "{text}");
        }
    }

    #[test]
    fn an_fstab_gets_one_line_and_keeps_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let fstab = folder.path().join("fstab");
        let old = "# a comment\nproc /proc proc defaults 0 0\npagelift /run/pagelift/images tmpfs size=1 0 0\n";
        fs::write(&fstab, old).unwrap();
        fs::set_permissions(&fstab, Permissions::from_mode(0o600)).unwrap();
        let mount = on("/run/pagelift/images").unwrap();
        mount.install_fstab_line(&fstab).unwrap();
        let once = fs::read_to_string(&fstab).unwrap();
        mount.install_fstab_line(&fstab).unwrap();
        assert_eq!(fs::read_to_string(&fstab).unwrap(), once);
        assert_eq!(once.lines().count(), 3);
        assert!(once.starts_with("# a comment\nproc /proc") && once.ends_with(&(mount.fstab_line() + "\n")), "{once}");
        assert_eq!(fs::metadata(&fstab).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&fstab, "/dev/sda1 /run/pagelift/images ext4 defaults 0 0\n").unwrap();
        assert!(mount.install_fstab_line(&fstab).is_err());
    }

    #[test]
    fn a_masked_unit_stays_masked() {
        let mount = on("/run/pagelift/images").unwrap();
        for (name, _) in mount.unit_names() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(&name);
            std::os::unix::fs::symlink("/dev/null", &path).unwrap();
            let refused = mount.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap_err().to_string();
            assert!(refused.contains(&format!("fix: `systemctl unmask {name}`")), "{refused}");
            assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/null"));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "others were written");
        }
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_unit_of_others_stays() {
        let mount = on("/srv/data").unwrap();
        let program = Path::new("/usr/bin/pagelift");
        let own = "[Mount]\nWhat=/dev/sdb1\nWhere=/srv/data\n";
        for (name, _) in mount.unit_names() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(&name);
            fs::write(&path, own).unwrap();
            let refused = mount.install_units(folder.path(), program).unwrap_err().to_string();
            let fix = "fix: `pagelift image setup --store DIRECTORY`";
            assert!(
                refused.contains("found a unit that Pagelift has not written") && refused.contains(fix),
                "{refused}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), own);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "others were written");

            fs::remove_file(&path).unwrap();
            mount.install_units(folder.path(), program).unwrap();
            let changed = fs::read_to_string(&path).unwrap() + "# mine\n";
            fs::write(&path, &changed).unwrap();
            let refused = mount.install_units(folder.path(), program).unwrap_err().to_string();
            assert!(refused.contains("was changed since Pagelift wrote it"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), changed);
        }
        // Other options and an earlier path of the program are Pagelift's own.
        let folder = tempfile::tempdir().unwrap();
        mount.install_units(folder.path(), Path::new("/opt/pagelift")).unwrap();
        let other = StoreMount::new(Path::new("/srv/data"), FileSystem::Hugetlbfs, None, None, 0o700).unwrap();
        other.install_units(folder.path(), program).unwrap();
    }

    #[test]
    fn units_are_written_and_enabled() {
        let folder = tempfile::tempdir().unwrap();
        let mount = on("/run/pagelift/images").unwrap();
        let program = Path::new("/opt/100% \"sure\"/pagelift");
        let paths = mount.install_units(folder.path(), program).unwrap();
        assert_eq!(mount.install_units(folder.path(), program).unwrap(), paths);
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for (unit, link) in [
            ("run-pagelift-images.mount", "local-fs.target.wants/run-pagelift-images.mount"),
            ("run-pagelift-images-gc.timer", "timers.target.wants/run-pagelift-images-gc.timer"),
        ] {
            assert_eq!(read(link), read(unit));
        }
        let service = read("run-pagelift-images-gc.service");
        let line = r#"ExecStart="/opt/100%% \"sure\"/pagelift" image gc --store /run/pagelift/images"#;
        assert!(service.lines().any(|found| found == line), "{service}");
        let condition = r#"ConditionFileIsExecutable=/opt/100%% "sure"/pagelift"#;
        assert!(service.lines().any(|found| found == condition), "{service}");
        assert_eq!(paths.len(), 3);
    }
}
