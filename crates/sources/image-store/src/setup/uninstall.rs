//! Removes the configuration that mounts a store at the next boots.

use super::replace::{refuse_masked, replace};
use super::{CONDITION, DEVICE, StoreMount};
use crate::store::ONLY_ON_REQUEST;
use crate::{FileSystem, StoreError};
use address_space::{PageSize, parse_bytes};
use foreign_text::quoted_path;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum length of a unit in bytes; Pagelift's units have less than a kilobyte.
const LONGEST: u64 = 64 << 10;
/// A line of each unit of a store.
const DOCUMENTATION: &str = "Documentation=man:pagelift-image(1)\n";

impl StoreMount {
    /// The names of the mount unit, the collection's service and its timer, with the targets that want them.
    pub(super) fn unit_names(&self) -> [(String, Option<&'static str>); 3] {
        let [(service, _), (timer, _)] = self.collection_units(Path::new(""));
        [(self.systemd_unit().0, Some("local-fs.target")), (service, None), (timer, Some("timers.target"))]
    }

    /// Checks that the units of this store directory may be written into a folder: each is missing there, or as Pagelift wrote it.
    ///
    /// # Errors
    /// [`StoreError::NotReplaced`] for a unit that is masked, changed or of others, or [`StoreError::Io`].
    pub fn check_units(&self, folder: &Path) -> Result<(), StoreError> {
        for (name, _) in self.unit_names() {
            refuse_masked(folder, &name)?;
            let path = folder.join(&name);
            match text_of(&path) {
                Ok(text) if self.wrote(&name, &text) => {}
                Ok(text) if text.contains(DOCUMENTATION) => return Err(changed(path)),
                Ok(_) => return Err(of_others(path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(format!("reading {}", path.display()), error)),
            }
        }
        Ok(())
    }

    /// This store directory's units in a folder, with any options: the mount unit first.
    ///
    /// # Errors
    /// [`StoreError::NotReplaced`] if a unit was changed since Pagelift wrote it, or [`StoreError::Io`].
    pub fn installed_units(&self, folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
        let mut found = Vec::new();
        for (name, _) in self.unit_names() {
            let path = folder.join(&name);
            match text_of(&path) {
                Ok(text) if self.wrote(&name, &text) => found.push(path),
                Ok(_) => return Err(changed(path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(format!("reading {}", path.display()), error)),
            }
        }
        Ok(found)
    }

    /// Removes the units of [`Self::installed_units`] and the links that enable them, and the folders of links that
    /// become empty, as `systemctl disable` does. Returns the paths of the units.
    ///
    /// # Errors
    /// As [`Self::installed_units`], before anything is removed; [`StoreError::Io`].
    pub fn uninstall_units(&self, folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
        let units = self.installed_units(folder)?;
        let removed = |path: &Path| {
            fs::remove_file(path).map_err(|error| StoreError::io(format!("removing {}", path.display()), error))
        };
        for (name, target) in self.unit_names() {
            let path = folder.join(&name);
            if !units.contains(&path) {
                continue;
            }
            let links = target.map(|target| folder.join(format!("{target}.wants")));
            if let Some(links) = links.filter(|links| links.join(&name).is_symlink()) {
                removed(&links.join(&name))?;
                // Other links keep it.
                let _ = fs::remove_dir(links);
            }
            removed(&path)?;
        }
        Ok(units)
    }

    /// Removes the line of this store's directory from an fstab; false if there is none.
    ///
    /// # Errors
    /// [`StoreError::NotReplaced`] if it is no regular file or has several hard links, or [`StoreError::Io`].
    pub fn uninstall_fstab_line(&self, fstab: &Path) -> Result<bool, StoreError> {
        let failed = |error| StoreError::io(format!("changing {}", fstab.display()), error);
        let text = match fs::read_to_string(fstab) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            text => text.map_err(failed)?,
        };
        let is_ours = |line: &&str| {
            let mut fields = line.split_whitespace();
            fields.next() == Some(DEVICE) && fields.next().map(Path::new) == Some(&self.directory)
        };
        let kept: String = text.split_inclusive('\n').filter(|line| !is_ours(line)).collect();
        if kept == text {
            return Ok(false);
        }
        replace(fstab, kept.as_bytes())?;
        Ok(true)
    }

    /// True for a unit of this directory that is written by some options and some path of the program.
    fn wrote(&self, name: &str, text: &str) -> bool {
        let (mount, _) = self.systemd_unit();
        if name == mount {
            return self.with_options_of(text).is_some_and(|written| written.systemd_unit().1 == text);
        }
        const EMPTY: &str = "ExecStart=\"\"";
        let line = text.lines().find_map(|line| line.strip_prefix(CONDITION));
        let program = line.map_or_else(PathBuf::new, |path| PathBuf::from(path.replace("%%", "%")));
        let units = self.collection_units(&program);
        let is_own = |own: &str| match own.split_once(EMPTY) {
            None => own == text,
            // Earlier versions wrote no condition.
            Some((before, after)) => {
                let before = before.replace(&format!("{CONDITION}\n"), "");
                let program = text.strip_prefix(&before).and_then(|rest| rest.strip_suffix(after));
                program.is_some_and(|line| line.starts_with("ExecStart=\"/") && !line.contains('\n'))
            }
        };
        units.iter().any(|(unit, own)| unit == name && is_own(own))
    }

    /// This mount with the options that a unit names.
    fn with_options_of(&self, unit: &str) -> Option<Self> {
        let value = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name));
        let options = value("Options=")?.replace("%%", "%");
        let option = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name));
        let file_system = if value("Type=")? == "hugetlbfs" { FileSystem::Hugetlbfs } else { FileSystem::Tmpfs };
        let page_size = option("pagesize=").and_then(|bytes| PageSize::new(parse_bytes(bytes).ok()?).ok());
        let size = option("size=").and_then(|size| size.parse().ok());
        let mode = u32::from_str_radix(option("mode=")?, 8).ok()?;
        let written = Self::new(&self.directory, file_system, page_size, size, mode & !ONLY_ON_REQUEST).ok()?;
        Some(written.with_automatic_images(mode & ONLY_ON_REQUEST == 0))
    }
}

fn changed(path: PathBuf) -> StoreError {
    let fix = format!("rm {}", quoted_path(&path));
    let found = "a unit that was changed since Pagelift wrote it".to_owned();
    StoreError::NotReplaced { path, found, needed: "one as it was written", fix }
}

fn of_others(path: PathBuf) -> StoreError {
    let fix = "pagelift image setup --store DIRECTORY".to_owned();
    let found = "a unit that Pagelift has not written".to_owned();
    StoreError::NotReplaced { path, found, needed: "none of this name", fix }
}

/// The text of a unit.
pub(super) fn text_of(path: &Path) -> io::Result<String> {
    use io::Read;
    let mut text = String::new();
    fs::File::open(path)?.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreSize;
    use std::collections::BTreeSet;
    use std::os::unix::fs::PermissionsExt;

    fn on(directory: &str) -> StoreMount {
        StoreMount::new(Path::new(directory), FileSystem::Tmpfs, None, None, 0o755).unwrap()
    }

    /// All files below a folder.
    fn files(folder: &Path) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.is_symlink() { found.extend(files(&path)) } else { found.extend([path]) }
        }
        found
    }

    #[test]
    fn units_of_any_options_are_taken_back_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let others = on("/srv/images");
        others.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap();
        let before = files(folder.path());
        let page = PageSize::new(2 << 20).ok();
        for (file_system, page_size, size, mode, automatic) in [
            (FileSystem::Tmpfs, None, None, 0o755, true),
            (FileSystem::Tmpfs, None, Some(StoreSize::Bytes(64 << 20)), 0o700, false),
            (FileSystem::Tmpfs, None, Some(StoreSize::Percent(5)), 0o750, true),
            (FileSystem::Hugetlbfs, page, None, 0o755, false),
        ] {
            let path = Path::new("/run/pagelift/images");
            let mount = StoreMount::new(path, file_system, page_size, size, mode).unwrap();
            let mount = mount.with_automatic_images(automatic);
            let written = mount.install_units(folder.path(), Path::new("/opt/100% \"sure\"/pagelift")).unwrap();
            assert_eq!(files(folder.path()).len(), before.len() + 5);
            assert_eq!(on("/run/pagelift/images").uninstall_units(folder.path()).unwrap(), written);
            assert_eq!(files(folder.path()), before);
        }
        assert!(on("/run/pagelift/images").uninstall_units(folder.path()).unwrap().is_empty());
    }

    #[test]
    fn units_of_earlier_releases_are_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let mount = on("/run/pagelift/images");
        let paths = mount.install_units(folder.path(), Path::new("/opt/100%/pagelift")).unwrap();
        let text = fs::read_to_string(&paths[1]).unwrap();
        let condition = "ConditionFileIsExecutable=/opt/100%%/pagelift\n";
        assert_eq!(text.matches(condition).count(), 1, "{text}");
        fs::write(&paths[1], text.replace(condition, "")).unwrap();
        assert_eq!(mount.uninstall_units(folder.path()).unwrap(), paths);
        mount.install_units(folder.path(), Path::new("/opt/100%/pagelift")).unwrap();
        let other = text.replace(condition, "ConditionFileIsExecutable=/usr/bin/another\n");
        fs::write(&paths[1], other).unwrap();
        assert!(mount.uninstall_units(folder.path()).is_err(), "its condition is another program's");
    }

    #[test]
    fn a_unit_that_was_changed_stays_and_so_do_the_others() {
        let mount = on("/run/pagelift/images");
        for name in ["run-pagelift-images.mount", "run-pagelift-images-gc.service", "run-pagelift-images-gc.timer"] {
            let folder = tempfile::tempdir().unwrap();
            mount.install_units(folder.path(), Path::new("/usr/bin/pagelift")).unwrap();
            let path = folder.path().join(name);
            fs::write(&path, fs::read_to_string(&path).unwrap() + "# mine\n").unwrap();
            let before = files(folder.path());
            let error = mount.uninstall_units(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("was changed since"), "{error}");
            assert_eq!(files(folder.path()), before);
        }
    }

    #[test]
    fn an_fstab_loses_the_line_of_the_store_alone() {
        let folder = tempfile::tempdir().unwrap();
        let fstab = folder.path().join("fstab");
        let mount = on("/run/pagelift/images");
        assert!(!mount.uninstall_fstab_line(&fstab).unwrap());
        let old = "# a comment\npagelift /srv/images tmpfs size=1 0 0\nproc /proc proc defaults 0 0";
        fs::write(&fstab, old.to_owned() + "\n").unwrap();
        fs::set_permissions(&fstab, fs::Permissions::from_mode(0o600)).unwrap();
        mount.install_fstab_line(&fstab).unwrap();
        assert!(mount.uninstall_fstab_line(&fstab).unwrap());
        assert_eq!(fs::read_to_string(&fstab).unwrap(), old.to_owned() + "\n");
        assert_eq!(fs::metadata(&fstab).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!mount.uninstall_fstab_line(&fstab).unwrap());
    }
}
