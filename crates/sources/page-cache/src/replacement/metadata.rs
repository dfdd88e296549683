//! A file's metadata: owner, mode, times, attributes (chattr(1)) and extended attributes, including access control
//! lists, capabilities and security labels.

use crate::replacement::ReplaceError;
use linux::{attributes, file_flags};
use nix::sys::stat::{Mode, fchmod, futimens};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, fchown};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Attributes that a user may set and that concern the contents or their use, not their storage.
const KEPT_FLAGS: u32 = file_flags::NO_ACCESS_TIME
    | file_flags::NO_DUMP
    | file_flags::SYNC
    | file_flags::UNDELETE
    | file_flags::SECURE_REMOVAL;
/// The metadata of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMetadata {
    owner: (u32, u32),
    mode: u32,
    /// Last use and last change, in seconds and nanoseconds.
    times: [(i64, i64); 2],
    flags: Option<u32>,
    extended: BTreeMap<CString, Vec<u8>>,
}

impl FileMetadata {
    /// The metadata of an open file.
    pub fn read(file: &File) -> Result<Self, ReplaceError> {
        let found = file.metadata().map_err(ReplaceError::io("fstat"))?;
        Ok(Self {
            owner: (found.uid(), found.gid()),
            mode: found.mode() & 0o7777,
            times: [(found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec())],
            flags: file_flags::flags(file).ok().map(|flags| flags & KEPT_FLAGS),
            extended: attributes::all_of(file).map_err(ReplaceError::io("reading extended attributes"))?,
        })
    }

    /// Refuses a file whose copy could not replace it.
    pub fn check(&self, file: &File) -> Result<(), ReplaceError> {
        let flags = file_flags::flags(file).unwrap_or(0);
        for (flag, name, letter) in
            [(file_flags::IMMUTABLE, "i (immutable)", 'i'), (file_flags::APPEND, "a (append only)", 'a')]
        {
            if flags & flag != 0 {
                return Err(ReplaceError::Unchangeable(name, letter));
            }
        }
        if self.extended.contains_key(c"security.evm") {
            return Err(ReplaceError::Evm);
        }
        if file_flags::shown(file).is_ok_and(|attributes| attributes & file_flags::VERITY != 0) {
            return Err(ReplaceError::Verity);
        }
        Ok(())
    }

    /// Sets an extended attribute, or removes it.
    pub fn set_extended(&mut self, name: CString, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.extended.insert(name, value),
            None => self.extended.remove(&name),
        };
    }

    /// The value of an extended attribute.
    #[cfg(test)]
    pub fn extended(&self, name: &std::ffi::CStr) -> Option<&[u8]> {
        self.extended.get(name).map(Vec::as_slice)
    }

    /// Gives all of this to another file, and reads it back.
    pub fn give_to(&self, file: &File) -> Result<(), ReplaceError> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| ReplaceError::Metadata { what, error }
        };
        let now = Self::read(file)?;
        if now.owner != self.owner {
            fchown(file, Some(Uid::from_raw(self.owner.0)), Some(Gid::from_raw(self.owner.1)))
                .map_err(|error| failed("owner and group")(error.into()))?;
        }
        // A new owner and a write take capabilities away, and a new mode changes an access control list, so this order.
        fchmod(file, Mode::from_bits_truncate(self.mode as nix::libc::mode_t))
            .map_err(|error| failed("mode")(error.into()))?;
        for name in now.extended.keys().filter(|name| !self.extended.contains_key(*name)) {
            let what = format!("extended attributes: {}", name.to_string_lossy());
            attributes::remove(file, name).map_err(failed(&what))?;
        }
        for (name, value) in self.extended.iter().filter(|(name, value)| now.extended.get(*name) != Some(value)) {
            let what = format!("extended attribute {}", name.to_string_lossy());
            attributes::set(file, name, value).map_err(failed(&what))?;
        }
        if let Some(flags) = self.flags.filter(|flags| now.flags != Some(*flags)) {
            let others = file_flags::flags(file).map_err(failed("attributes"))? & !KEPT_FLAGS;
            file_flags::set_flags(file, others | flags).map_err(failed("attributes"))?;
        }
        let [used, changed] = self.times.map(|(seconds, nanoseconds)| TimeSpec::new(seconds as _, nanoseconds as _));
        futimens(file, &used, &changed).map_err(|error| failed("times")(error.into()))?;
        self.compare(&Self::read(file)?)
    }

    /// Compares with other metadata; the error names the difference.
    pub fn compare(&self, other: &Self) -> Result<(), ReplaceError> {
        let differs = |what: &str| Err(ReplaceError::Differs(what.to_owned()));
        match () {
            () if self.owner != other.owner => differs("owner or group"),
            () if self.mode != other.mode => differs("mode"),
            () if self.times != other.times => differs("times"),
            () if self.flags != other.flags => differs("attributes"),
            () if self.extended != other.extended => differs("extended attributes"),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::geteuid;

    #[test]
    fn everything_is_given_and_what_differs_is_named() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let [one, other] = ["one", "other"].map(|name| File::create(folder.path().join(name)).unwrap());
        fchmod(&one, Mode::from_bits_truncate(0o4751)).unwrap();
        futimens(&one, &TimeSpec::new(5, 7), &TimeSpec::new(-3, 999_999_999)).unwrap();
        let has_extended = attributes::set(&one, c"user.pagelift-test", b"\0x").is_ok()
            && attributes::set(&other, c"user.other", b"").is_ok();
        if geteuid().is_root() {
            fchown(&one, Some(Uid::from_raw(12345)), Some(Gid::from_raw(54321))).unwrap();
            fchmod(&one, Mode::from_bits_truncate(0o4751)).unwrap();
        }
        let wanted = FileMetadata::read(&one).unwrap();
        assert!(wanted.compare(&FileMetadata::read(&other).unwrap()).is_err());
        wanted.give_to(&other).unwrap();
        let given = FileMetadata::read(&other).unwrap();
        assert_eq!(given, wanted);
        assert_eq!((given.mode, given.times[1]), (0o4751, (-3, 999_999_999)));
        if has_extended {
            assert_eq!(
                (given.extended(c"user.pagelift-test"), given.extended(c"user.other")),
                (Some(&b"\0x"[..]), None)
            );
        }
    }
}
