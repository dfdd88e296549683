//! The identity of the file that an image was made from.

use crate::medium::Medium;
use crate::{Form, Layout, StoreError, reading};
use address_space::{ElfImage, PageSize};
use process_view::FileIdentity;
use std::fs::File;

/// Version of the key; raised when images of older versions must not be used any more.
const FORMAT: &str = "v2";
/// First letter of the last field, the node, in the names of copies for one node; in no other field.
const NODE: char = 'n';
/// Maximum number of hexadecimal digits of the build-id in a name, since the length of file names is limited.
const MOST_BUILD_ID: usize = 64;

/// The mounted file system, device, inode, size, both times and the build-id of a file, read from one descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceKey {
    medium: Medium,
    file: FileIdentity,
    build_id: Option<String>,
}

impl SourceKey {
    /// The key of an open file, for example of `/proc/PID/map_files/…` or `/proc/PID/exe`.
    ///
    /// # Errors
    /// [`StoreError`] if it is not a regular file, or not a sound ELF file, or if other contents could get the same
    /// key: [`StoreError::ChangesUnseen`], [`StoreError::MediumUnknown`].
    pub fn read(file: &File) -> Result<Self, StoreError> {
        let identity = reading::identity(file)?;
        Self::new(file, identity, &reading::elf_image(file, identity.size)?)
    }

    /// The key of a file whose identity and image were read from the same descriptor.
    ///
    /// # Errors
    /// [`StoreError::ChangesUnseen`], [`StoreError::MediumUnknown`].
    pub fn new(file: &File, identity: FileIdentity, image: &ElfImage) -> Result<Self, StoreError> {
        let medium = Medium::of(file, identity.device)?;
        let build_id = image.build_id.as_ref().filter(|id| !id.is_empty());
        let build_id = build_id.map(|id| id.chars().take(MOST_BUILD_ID).collect());
        Ok(Self { medium, file: identity, build_id })
    }

    /// Identity of the file.
    pub fn file(&self) -> FileIdentity {
        self.file
    }

    /// The GNU build-id in hexadecimal, cut to 64 digits.
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// The file system of the source.
    pub(crate) fn medium(&self) -> Medium {
        self.medium
    }

    /// Prefix of the names of all images of this file, whatever its contents were when they were made.
    pub(crate) fn prefix_of_inode(&self) -> String {
        let FileIdentity { device, inode, .. } = self.file;
        format!("{FORMAT}-{}-{device:x}-{inode:x}-", self.medium)
    }

    /// Prefix of the names of all images of this source.
    pub(crate) fn prefix(&self) -> String {
        let FileIdentity { size, modified, changed, .. } = self.file;
        let build_id = self.build_id.as_deref().unwrap_or("none");
        let times = format!("{:x}.{:x}-{:x}.{:x}", modified.0, modified.1, changed.0, changed.1);
        format!("{}{size:x}-{times}-{build_id}-", self.prefix_of_inode())
    }

    /// The name that an image of this source in this form has in every store.
    pub(crate) fn name(&self, Form { layout, node }: Form) -> String {
        let node = node.map(|node| format!("-{NODE}{node}")).unwrap_or_default();
        format!("{}{:x}-{:x}{node}", self.prefix(), layout.page_size().bytes(), layout.base_offset())
    }

    /// Reads a name; `None` for any name that [`SourceKey::name`] does not write.
    pub(crate) fn of_name(name: &str) -> Option<(Self, Form)> {
        let mut fields: Vec<&str> = name.split('-').collect();
        let node = fields.last()?.strip_prefix(NODE).map(str::parse::<u32>);
        if node.is_some() {
            fields.pop();
        }
        let [FORMAT, medium, device, inode, size, modified, changed, build_id, page_size, base_offset] = fields[..]
        else {
            return None;
        };
        let file = FileIdentity {
            device: hexadecimal(device)?,
            inode: hexadecimal(inode)?,
            size: hexadecimal(size)?,
            modified: time(modified)?,
            changed: time(changed)?,
        };
        let build_id = (build_id != "none").then(|| build_id.to_owned());
        let key = Self { medium: Medium::parse(medium)?, file, build_id };
        let layout = Layout::at(PageSize::new(hexadecimal(page_size)?).ok()?, hexadecimal(base_offset)?);
        let form = Form { layout, node: node.transpose().ok()? };
        // Writing the key again must give the same name: no two names denote one image.
        (key.name(form) == name).then_some((key, form))
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Seconds may be negative; they are written as two's complement.
fn time(text: &str) -> Option<(i64, i64)> {
    let (seconds, nanoseconds) = text.split_once('.')?;
    Some((hexadecimal(seconds)? as i64, hexadecimal(nanoseconds)? as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> impl Strategy<Value = SourceKey> {
        let times = || (any::<i64>(), 0..1_000_000_000i64);
        let file = (any::<u64>(), any::<u64>(), any::<u64>(), times(), times());
        let numbered = any::<u64>();
        let medium = (0..3u8, numbered).prop_map(|(kind, number)| match kind {
            0 => Medium::Mounted(number),
            1 => Medium::Disk(number),
            _ => Medium::Permanent,
        });
        (medium, file, prop::option::of("[0-9a-f]{1,64}")).prop_map(|(medium, file, build_id)| {
            let (device, inode, size, modified, changed) = file;
            SourceKey { medium, file: FileIdentity { device, inode, size, modified, changed }, build_id }
        })
    }

    /// No node, and those that Linux can have (`CONFIG_NODES_SHIFT` of at most 10).
    fn nodes() -> impl Strategy<Value = Option<u32>> {
        prop::option::of(0..1024u32)
    }

    proptest! {
        #[test]
        fn a_name_gives_back_its_key(key in keys(), shift in 12..31u32, bias: u64, node in nodes()) {
            let form = Form { layout: Layout::at(PageSize::new(1 << shift).unwrap(), bias), node };
            let name = key.name(form);
            // NAME_MAX, linux/limits.h.
            prop_assert!(name.len() <= 255, "{} bytes: {name}", name.len());
            prop_assert_eq!(SourceKey::of_name(&name), Some((key, form)));
        }

        #[test]
        fn different_keys_have_different_names(one in keys(), other in keys()) {
            let layout = Layout::at(PageSize::new(1 << 21).unwrap(), 0);
            prop_assert_eq!(one == other, one.name(layout.into()) == other.name(layout.into()));
            prop_assert!(one.name(layout.into()) != one.name(Form::on(layout, 0)));
        }

        #[test]
        fn no_name_makes_the_reader_panic(name in "(v2-)?[-.0-9a-fmpx]{0,80}(-n[0-9]{0,12})?") {
            let _ = SourceKey::of_name(&name);
        }
    }
}
