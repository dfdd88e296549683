//! The store: finds, lists and removes images.

use crate::access::ROOT;
use crate::directory::{names_in, open_directory_in, open_in, open_path};
use crate::file_system::{self, Check, FileSystem, Space};
use crate::image::{Mark, mappable_segments};
use crate::locks::{ImageLock, LOCKS, remove_abandoned};
use crate::{Form, Image, SourceKey, StoreError, access, reading, record};
use address_space::PageSize;
use foreign_text::quoted_path;
use linux::lock_file::LockError;
use linux::pages::base_page;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time to wait for another process that makes or removes an image. Copying a file of several GiB and reading
/// it back takes less.
const LOCKED_AT_MOST: Duration = Duration::from_secs(60);

/// This mode of the store's directory forbids automatic images. It is the sticky bit, which has no effect on a directory
/// that only root may write (inode(7)). A mode is a mount option, so mount units and fstab keep it for the next boot.
pub(crate) const ONLY_ON_REQUEST: u32 = 0o1000;

/// The default directory of the store.
pub const DEFAULT_DIRECTORY: &str = "/run/pagelift/images";
/// The environment variable that names another directory.
pub const STORE_VARIABLE: &str = "PAGELIFT_STORE";

/// Returns the store's directory: `$PAGELIFT_STORE`, or [`DEFAULT_DIRECTORY`] if that is unset or empty.
pub fn default_directory() -> PathBuf {
    std::env::var_os(STORE_VARIABLE)
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from(DEFAULT_DIRECTORY), PathBuf::from)
}

/// An image store, checked and open.
#[derive(Debug)]
pub struct Store {
    pub(crate) directory: OwnedFd,
    path: PathBuf,
    file_system: FileSystem,
    page_size: PageSize,
    makes_automatic_images: bool,
    locked_at_most: Duration,
}

/// The contents of a store.
#[derive(Debug, Default)]
pub struct Listing {
    /// Sound images that this user may read, by the names of their sources.
    pub images: Vec<Image>,
    /// Names of images that are not sound, and why.
    pub damaged: Vec<(String, &'static str)>,
    /// Names that no image has. A collection keeps them.
    pub foreign: Vec<String>,
    /// Images that only root may read.
    pub not_readable: u64,
}

impl Store {
    /// Opens the store in a directory, and checks that it is one: owned by root, writable by nobody else, reached
    /// without a symbolic link, on a tmpfs mounted `huge=always` or on hugetlbfs with the source `pagelift`, and code may
    /// be mapped from it.
    ///
    /// # Errors
    /// [`StoreError::NoStore`] or [`StoreError::Unfit`], with the command that fixes it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_checked(path, Check::Whole)
    }

    /// Opens a store to map its images. This does not check that `pagelift image setup` has
    /// mounted it, and that its tmpfs would get huge pages now: a lift reads back
    /// from the kernel whether a mapped image is on them.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_to_map(path: &Path) -> Result<Self, StoreError> {
        Self::open_checked(path, Check::ToMap)
    }

    fn open_checked(path: &Path, check: Check) -> Result<Self, StoreError> {
        let directory = match open_path(path) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Err(StoreError::NoStore(path.to_owned())),
            Err(Errno::ELOOP | Errno::ENOTDIR) => {
                let found = "a symbolic link or a file on the way".to_owned();
                let fix = format!("pagelift image setup --store \"$(realpath {})\"", quoted_path(path));
                return Err(StoreError::Unfit { path: path.to_owned(), found, needed: "directories alone", fix });
            }
            Err(error) => return Err(StoreError::io(format!("opening the image store {}", path.display()), error)),
        };
        let file = File::from(directory);
        let metadata = file.metadata().map_err(|error| StoreError::io("fstat of the image store", error))?;
        check_owner(&metadata, path)?;
        let (file_system, page_size) = file_system::inspect(&file, metadata.dev(), path, check)?;
        let makes_automatic_images = metadata.mode() & ONLY_ON_REQUEST == 0;
        let (directory, path, locked_at_most) = (file.into(), path.to_owned(), LOCKED_AT_MOST);
        Ok(Self { directory, path, file_system, page_size, makes_automatic_images, locked_at_most })
    }

    /// Returns the store with calls that do not wait for other processes that make or remove an image: they fail with
    /// [`StoreError::Locked`] at once.
    #[must_use]
    pub fn without_waiting(self) -> Self {
        Self { locked_at_most: Duration::ZERO, ..self }
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the store's huge pages.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// The source of its huge pages.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// True if lifts may make images in it; false if images are made only by [`Request::Explicit`](crate::Request).
    pub fn makes_automatic_images(&self) -> bool {
        self.makes_automatic_images
    }

    /// Its maximum size and free space.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn space(&self) -> Result<Space, StoreError> {
        file_system::space(&self.directory)
    }

    /// The image of a source in a form; `None` if there is none.
    ///
    /// Each call checks whether everybody can still read the source. If not, root restricts the image, and other users
    /// do not get it.
    ///
    /// # Errors
    /// [`StoreError::NotForEverybody`], [`StoreError::Damaged`] or [`StoreError::Io`].
    pub fn find(&self, key: &SourceKey, form: impl Into<Form>) -> Result<Option<Image>, StoreError> {
        let form = form.into();
        let Some(mut image) = self.open_image(&key.name(form), key, form)? else { return Ok(None) };
        if geteuid().as_raw() == ROOT {
            self.review(&mut image)?;
        } else if !access::is_readable_by_us(image.source()) {
            return Err(StoreError::NotForEverybody(image.source));
        }
        Ok(Some(image))
    }

    /// Restricts an image to root if not everybody can read its source. Returns whether it did.
    pub(crate) fn review(&self, image: &mut Image) -> Result<bool, StoreError> {
        let shows_too_much = image.shows_too_much();
        if shows_too_much {
            image.withdraw()?;
        }
        Ok(shows_too_much)
    }

    /// Returns the forms in which the store has images of a source, so that the one that fits can be chosen.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn forms(&self, key: &SourceKey) -> Result<Vec<Form>, StoreError> {
        let prefix = key.prefix();
        let names = self.names()?;
        let of_source = names.iter().filter(|name| name.starts_with(&prefix));
        Ok(of_source.filter_map(|name| SourceKey::of_name(name)).map(|(_, form)| form).collect())
    }

    /// Everything in the store.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn list(&self) -> Result<Listing, StoreError> {
        let mut listing = Listing::default();
        for name in self.names()? {
            let Some((key, form)) = SourceKey::of_name(&name) else {
                listing.foreign.push(name);
                continue;
            };
            match self.open_image(&name, &key, form) {
                Ok(Some(image)) => listing.images.push(image),
                Ok(None) => {}
                Err(StoreError::NotForEverybody(_)) => listing.not_readable += 1,
                Err(StoreError::Damaged { name, problem }) => listing.damaged.push((name, problem)),
                Err(error) => return Err(error),
            }
        }
        listing.images.sort_by(|a, b| (&a.source, a.form).cmp(&(&b.source, b.form)));
        Ok(listing)
    }

    /// Removes an image. Processes that map it keep their memory until they end.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] or [`StoreError::Io`]; an image that is already removed is not an error.
    pub fn remove(&self, image: &Image) -> Result<(), StoreError> {
        self.remove_named(&image.name)
    }

    /// Removes debris: images that [`Store::list`] reports as damaged, and empty folders of processes that were killed
    /// while they made an image. Foreign files stay. Returns the number removed.
    ///
    /// # Errors
    /// [`StoreError::NotPermitted`] or [`StoreError::Io`].
    pub fn remove_debris(&self) -> Result<u64, StoreError> {
        let mut removed = 0;
        for (name, _) in self.list()?.damaged {
            self.remove_named(&name)?;
            removed += 1;
        }
        for name in self.names()?.into_iter().filter(|name| SourceKey::of_name(name).is_some()) {
            removed += u64::from(self.remove_if_empty(&name));
        }
        remove_abandoned(&self.directory);
        Ok(removed)
    }

    /// Returns the names in the store, without its folder of locks. A name that is not UTF-8 is changed, so that it
    /// never denotes an image.
    pub(crate) fn names(&self) -> Result<Vec<String>, StoreError> {
        let names = names_in(&self.directory).map_err(|error| StoreError::io("listing the image store", error))?;
        let names = names.into_iter().map(|name| name.to_string_lossy().into_owned());
        Ok(names.filter(|name| name != LOCKS).collect())
    }

    /// Takes the lock on the image of this name; waits for another process that makes or removes it.
    pub(crate) fn lock(&self, name: &str, fix: &str) -> Result<ImageLock<'_>, StoreError> {
        let path = || self.path.join(LOCKS).join(name);
        ImageLock::take(&self.directory, name, self.locked_at_most).map_err(|error| match error {
            LockError::Held(waited) => StoreError::Locked { path: path(), waited },
            LockError::OfAnotherUser(user) => StoreError::LockOfAnotherUser { path: path(), user },
            LockError::Refused(Errno::EACCES | Errno::EPERM) => StoreError::NotPermitted { fix: fix.to_owned() },
            LockError::Refused(Errno::ENOSPC) => StoreError::Full { needed: 1, free: 0 },
            LockError::Refused(error) => StoreError::io(format!("locking {}", path().display()), error),
        })
    }

    pub(crate) fn open_image(&self, name: &str, key: &SourceKey, form: Form) -> Result<Option<Image>, StoreError> {
        let damaged = |problem| StoreError::Damaged { name: name.to_owned(), problem };
        let folder = match open_directory_in(&self.directory, OsStr::new(name)) {
            Ok(folder) => folder,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => return Err(damaged("it is no folder")),
            Err(error) => return Err(StoreError::io(format!("opening image {name}"), error)),
        };
        let names = names_in(&folder).map_err(|error| StoreError::io(format!("listing image {name}"), error))?;
        let [label] = &names[..] else {
            return if names.is_empty() { Ok(None) } else { Err(damaged("more than one file")) };
        };
        // This read does not count as a use of the image (O_NOATIME), which only its owner may do.
        let unnoticed = if geteuid().as_raw() == ROOT { OFlag::O_NOATIME } else { OFlag::empty() };
        let file = match open_in(&folder, label, OFlag::O_RDONLY | OFlag::O_NONBLOCK | unnoticed) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::EACCES) => return Err(StoreError::NotForEverybody(PathBuf::from(label))),
            Err(Errno::ELOOP | Errno::EXDEV) => return Err(damaged("a symbolic link or a mount")),
            Err(error) => return Err(StoreError::io(format!("opening image {name}"), error)),
        };
        let metadata = file.metadata().map_err(|error| StoreError::io("fstat of an image", error))?;
        if metadata.nlink() == 0 {
            return Ok(None);
        }
        check_file(&metadata, self.page_size).map_err(damaged)?;
        let mut head = [0; record::MOST_BYTES];
        let length =
            file.read_at(&mut head, record::OFFSET).map_err(|error| StoreError::io("reading an image", error))?;
        let source = record::read(&head[..length]).ok_or_else(|| damaged("no record"))?;
        let elf = reading::elf_image(&file, metadata.size()).map_err(|_| damaged("no sound ELF file"))?;
        let Mark { for_everybody, automatic } = Mark::of(metadata.mode());
        Ok(Some(Image {
            path: self.path.join(name).join(label),
            name: name.to_owned(),
            file,
            size: metadata.size(),
            device: metadata.dev(),
            inode: metadata.ino(),
            for_everybody,
            automatic,
            key: key.clone(),
            form,
            source,
            segments: mappable_segments(&elf, base_page()),
        }))
    }

    fn remove_named(&self, name: &str) -> Result<(), StoreError> {
        const FIX: &str = "pagelift image gc";
        let explain = |error| match error {
            Errno::EACCES | Errno::EPERM => StoreError::NotPermitted { fix: FIX.to_owned() },
            error => StoreError::io(format!("removing {name} from the image store"), error),
        };
        let _lock = self.lock(name, FIX)?;
        let folder = match open_directory_in(&self.directory, OsStr::new(name)) {
            Ok(folder) => folder,
            Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                return unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir).map_err(explain);
            }
            Err(error) => return Err(explain(error)),
        };
        for label in names_in(&folder).map_err(explain)? {
            ignore_absence(unlinkat(&folder, label.as_os_str(), UnlinkatFlags::NoRemoveDir)).map_err(explain)?;
        }
        ignore_absence(unlinkat(&self.directory, name, UnlinkatFlags::RemoveDir)).map_err(explain)
    }

    /// Removes a folder that has no image and in which none is being made.
    pub(crate) fn remove_if_empty(&self, name: &str) -> bool {
        let is_empty = open_directory_in(&self.directory, OsStr::new(name)).and_then(names_in);
        if !is_empty.is_ok_and(|names| names.is_empty()) {
            return false;
        }
        let Ok(_lock) = ImageLock::take(&self.directory, name, Duration::ZERO) else { return false };
        unlinkat(&self.directory, name, UnlinkatFlags::RemoveDir).is_ok()
    }
}

fn ignore_absence(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::ENOENT) { Ok(()) } else { result }
}

fn check_owner(metadata: &Metadata, path: &Path) -> Result<(), StoreError> {
    let unfit = |found, needed, fix| Err(StoreError::Unfit { path: path.to_owned(), found, needed, fix });
    if metadata.uid() != ROOT {
        let fix = format!("chown root:root {}", quoted_path(path));
        return unfit(format!("owner {}", metadata.uid()), "root as owner", fix);
    }
    if metadata.mode() & 0o022 != 0 {
        let fix = format!("chmod go-w {}", quoted_path(path));
        return unfit(format!("mode {:o}", metadata.mode() & 0o7777), "writable by root alone", fix);
    }
    Ok(())
}

fn check_file(metadata: &Metadata, page_size: PageSize) -> Result<(), &'static str> {
    match metadata {
        m if !m.is_file() => Err("not a regular file"),
        m if m.uid() != ROOT => Err("not owned by root"),
        m if m.mode() & 0o222 != 0 => Err("writable"),
        m if m.nlink() != 1 => Err("it has another name"),
        m if m.size() == 0 || m.size() % page_size.bytes() != 0 => Err("its length is no whole number of huge pages"),
        _ => Ok(()),
    }
}
