//! Shared copies of ELF files on huge pages: one copy that every process maps, instead of one for each.
//!
//! A store is a directory on a tmpfs mounted `huge=always`, or on hugetlbfs, that belongs to root. An image in it is
//! made from one file, identified by the kernel's metadata of the *open* file ([`SourceKey`]), never by its name. The
//! image is itself an ELF file in which every byte's offset agrees with its address modulo the huge page size, for one
//! offset of the base ([`Layout`]). A process maps the whole huge pages of its read-only ranges from it
//! ([`Image::offset_of`]).
//!
//! ```text
//! let store = Store::open(&default_directory())?;
//! let key = SourceKey::read(&file)?;                      // of the file that the process really has mapped
//! let layout = Layout::at(store.page_size(), object.bias);
//! let image = match store.find(&key, layout)? {
//!     Some(image) => image,
//!     None => store.make(&file, layout, Request::Explicit)?, // root only
//! };
//! image.offset_of(range, object.bias)                     // for mmap(MAP_FIXED) of image.path() or image.file()
//! ```
//!
//! Guarantees:
//! - An image appears in the store whole or not at all: it is filled without a name and then linked.
//! - No symbolic link is followed, neither on the way to the store nor in it.
//! - A changed file has no image of its old contents: images are made of files on file systems that give a changed file
//!   another time of change, while no process can write to them ([`Store::make`]).
//! - A file has no image of another file on a file system that was mounted before ([`SourceKey`]).
//! - An image is readable by everybody only if its source is. After the source was restricted, root's next use or
//!   collection restricts the image ([`Store::find`], [`Store::collect`]).
//! - When a copy for one NUMA node is made, all its pages are on that node ([`Form`]).
//! - Only root decides the amount of data in the store: without a request, images are made of root's own files only
//!   ([`Request`]).
#![forbid(unsafe_code)]

mod access;
mod collect;
mod coverage;
mod directory;
mod error;
mod file_system;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod image;
mod key;
mod layout;
mod locks;
mod make;
mod medium;
mod nodes;
mod origin;
mod reading;
mod recipe;
mod record;
mod request;
mod room;
mod setup;
mod store;
mod users;

pub use collect::{Collected, Collection};
pub use coverage::ImageCoverage;
pub use error::StoreError;
pub use file_system::{FileSystem, Space};
pub use image::{Image, ImageSegment};
pub use key::SourceKey;
pub use layout::{Form, Layout};
pub use origin::SourceState;
pub use reading::read_elf;
pub use request::{Request, SYSTEM_FOLDERS, is_made_unasked};
pub use setup::{StoreMode, StoreMount, StoreSize};
pub use store::{DEFAULT_DIRECTORY, Listing, STORE_VARIABLE, Store, default_directory};
pub use users::Users;
