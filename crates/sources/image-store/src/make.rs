//! Makes an image: fills a file that has no name yet, checks it, and links it into the store.

use crate::access::ROOT;
use crate::directory::{open_directory_in, open_in};
use crate::file_system::FileSystem;
use crate::image::Mark;
use crate::recipe::Recipe;
use crate::{
    Form, Image, Layout, Request, SourceKey, Store, StoreError, access, coverage, nodes, origin, reading, record,
};
use address_space::ElfImage;
use foreign_text::quoted_path;
use linux::file_mapping::write_huge_pages;
use linux::leases::Lease;
use linux::pages::base_page;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, unlinkat};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Maximum number of images of one file, each for another base. More would only fill the store.
const MOST_LAYOUTS: usize = 8;
/// The command that makes an image as root.
const FIX: &str = "pagelift image add FILE";

impl Store {
    /// Returns the image of an open file in a form, and makes it if there is none yet. Only root can make one.
    ///
    /// Any number of processes may ask for the same image at once: one makes it, the others wait and get it. A process
    /// that is killed at any moment while it makes an image leaves no image and no memory behind.
    ///
    /// A read lease is held while the image is made, so that no process has the source open for writing or mapped
    /// writable; a process that opens it for writing waits until the image is made or dropped.
    ///
    /// All pages of a copy for one node are on that node when it is made; if the node lacks them, no image is made.
    ///
    /// # Errors
    /// [`StoreError`]: why there is no image. The store is unchanged then, except for useless images that were removed
    /// to make room.
    pub fn make(&self, source: &File, form: impl Into<Form>, request: Request) -> Result<Image, StoreError> {
        let form = self.own(form.into())?;
        let origin = origin::of(source);
        if let Some(image) = self.find(&SourceKey::read(source)?, form)? {
            return Self::as_asked_for(image, request);
        }
        if geteuid().as_raw() != ROOT {
            let fix = format!("pagelift image add {}", quoted_path(&origin.path));
            return Err(StoreError::NotPermitted { fix });
        }
        if request.is_automatic() && !self.makes_automatic_images() {
            return Err(StoreError::OnlyOnRequest(origin.path));
        }
        let lease = lease_on(source, &origin)?;
        let before = reading::identity_at_rest(source)?;
        if request.is_automatic()
            && let Some(why) = access::not_roots_own(&origin.path, &before)
        {
            return Err(StoreError::NotAskedFor { why, path: origin.path });
        }
        request.check(source, &origin.path)?;
        let length = before.size;
        let key = SourceKey::new(source, before, &reading::elf_image(source, length)?)?;
        let cache = reading::cache(source, length);
        let recipe = Recipe::new(&cache, length, form.layout, base_page(), record::write(&origin.path))?;
        self.check_bounds(&key, form, &recipe, request)?;
        let for_everybody = access::is_readable_by_everybody(&origin.path, &before);
        let mark = Mark { for_everybody, automatic: request.is_automatic() };
        let name = key.name(form);
        // Until the image is there or has failed: no other process makes or removes it.
        let _lock = self.lock(&name, FIX)?;
        let folder = self.folder(&name)?;
        if let Some(image) = self.open_image(&name, &key, form)? {
            return Ok(image);
        }
        let fill = || self.fill(&folder, &recipe, source, length);
        let filled = match form.node {
            None => fill(),
            Some(node) => nodes::filled_on(node, &recipe, self.page_size(), fill),
        };
        let made = filled.and_then(|file| {
            if !lease.is_kept() || reading::identity(source)? != before {
                return Err(StoreError::SourceChanging);
            }
            check_shape(&file, &recipe, source, length)?;
            publish(&folder, &file, &origin, mark)
        });
        if let Err(error) = made {
            let _ = unlinkat(&self.directory, name.as_str(), UnlinkatFlags::RemoveDir);
            return Err(error);
        }
        self.withdraw_older(&key)?;
        self.open_image(&name, &key, form)?.ok_or(StoreError::RemovedAtOnce)
    }

    /// Updates the flags of an existing image: it is requested now, and readable by everybody if its file has become
    /// so.
    fn as_asked_for(mut image: Image, request: Request) -> Result<Image, StoreError> {
        if geteuid().as_raw() == ROOT {
            let identity = image.key.file();
            let for_everybody = image.for_everybody || access::is_readable_by_everybody(&image.source, &identity);
            image.set_mode(Mark { for_everybody, automatic: image.automatic && request.is_automatic() })?;
        }
        Ok(image)
    }

    /// Restricts images of the file's earlier contents to root, since users may not be able to read the file any more.
    fn withdraw_older(&self, key: &SourceKey) -> Result<(), StoreError> {
        let (inode, now) = (key.prefix_of_inode(), key.prefix());
        for name in self.names()?.iter().filter(|name| name.starts_with(&inode) && !name.starts_with(&now)) {
            let Some((key, form)) = SourceKey::of_name(name) else { continue };
            if let Ok(Some(mut image)) = self.open_image(name, &key, form) {
                image.withdraw()?;
            }
        }
        Ok(())
    }

    /// Refuses a layout for other huge pages than the store's.
    fn own(&self, form: Form) -> Result<Form, StoreError> {
        let wanted = form.layout.page_size();
        match wanted == self.page_size() {
            true => Ok(form),
            false => Err(StoreError::OtherPageSize { wanted, found: self.page_size() }),
        }
    }

    fn check_bounds(&self, key: &SourceKey, form: Form, recipe: &Recipe, request: Request) -> Result<(), StoreError> {
        let (needed, allowed) = (recipe.memory(), request.most_bytes());
        if needed > allowed {
            return Err(StoreError::TooLarge { needed, allowed });
        }
        let others: BTreeSet<Layout> = self.forms(key)?.into_iter().map(|other| other.layout).collect();
        let others = others.into_iter().filter(|other| *other != form.layout).count();
        if others >= MOST_LAYOUTS {
            return Err(StoreError::TooManyLayouts(others));
        }
        if let Some(node) = form.node {
            nodes::check_room(node, self.file_system(), self.page_size(), needed)?;
        }
        self.make_room(needed, request)
    }

    /// Returns the image's folder, made if necessary. The image is locked.
    fn folder(&self, name: &str) -> Result<OwnedFd, StoreError> {
        let explain = |error| match error {
            Errno::EACCES | Errno::EPERM => StoreError::NotPermitted { fix: FIX.to_owned() },
            Errno::ENOSPC => StoreError::Full { needed: 1, free: 0 },
            error => StoreError::io(format!("making the folder {name} in the image store"), error),
        };
        let mode = Mode::from_bits_truncate(0o755);
        match mkdirat(&self.directory, name, mode) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(explain(error)),
        }
        let folder = open_directory_in(&self.directory, OsStr::new(name)).map_err(explain)?;
        // The umask must not restrict access.
        fchmod(&folder, mode).map_err(explain)?;
        Ok(folder)
    }

    /// Returns a nameless file with the recipe's contents, each byte read back.
    fn fill(&self, folder: &OwnedFd, recipe: &Recipe, source: &File, length: u64) -> Result<File, StoreError> {
        let explain = |error: io::Error| self.explain_write(recipe, error);
        let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let file = openat(folder, ".", flags, Mode::from_bits_truncate(0o600)).map_err(|e| explain(e.into()))?;
        let file = File::from(file);
        file.set_len(recipe.size()).map_err(explain)?;
        let page = self.page_size().bytes();
        // All pages are allocated first: a shortage fails before anything is copied, and hugetlbfs would raise SIGBUS
        // later.
        for number in recipe.pages() {
            let (offset, length) = ((number * page) as i64, page as i64);
            fallocate(&file, FallocateFlags::empty(), offset, length).map_err(|e| explain(e.into()))?;
        }
        let mut read = |offset: u64, into: &mut [u8]| read_padded(source, length, offset, into);
        let mut wanted = vec![0; page as usize];
        for number in recipe.pages() {
            recipe.fill(number, &mut wanted, &mut read).map_err(explain)?;
            match self.file_system() {
                FileSystem::Tmpfs => file.write_all_at(&wanted, number * page),
                FileSystem::Hugetlbfs => write_huge_pages(&file, number * page, &wanted, self.page_size()),
            }
            .map_err(explain)?;
        }
        let mut found = vec![0; page as usize];
        for number in recipe.pages() {
            recipe.fill(number, &mut wanted, &mut read).map_err(explain)?;
            file.read_exact_at(&mut found, number * page).map_err(explain)?;
            if let Some(at) = wanted.iter().zip(&found).position(|(wanted, found)| wanted != found) {
                return Err(StoreError::Differs(number * page + at as u64));
            }
        }
        if self.file_system() == FileSystem::Tmpfs {
            coverage::collapse(&file, recipe.pages(), self.page_size());
        }
        Ok(file)
    }

    fn explain_write(&self, recipe: &Recipe, error: io::Error) -> StoreError {
        let needed = recipe.memory();
        match (error.raw_os_error().map(Errno::from_raw), self.file_system()) {
            (Some(Errno::ENOSPC | Errno::ENOMEM), FileSystem::Hugetlbfs) => {
                StoreError::PoolTooSmall { needed: self.page_size().pages_for(needed), size: self.page_size() }
            }
            (Some(Errno::ENOSPC), FileSystem::Tmpfs) => {
                StoreError::Full { needed, free: self.space().ok().and_then(|space| space.free).unwrap_or(0) }
            }
            _ => StoreError::io("filling an image", error),
        }
    }
}

/// Reads the source; behind its end there are zeros, as in the last page of a mapping. A source that is truncated while
/// it is read is an error.
fn read_padded(source: &File, length: u64, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let present = length.saturating_sub(offset).min(into.len() as u64) as usize;
    source.read_exact_at(&mut into[..present], offset)?;
    into[present..].fill(0);
    Ok(())
}

/// Checks that the finished file has the same shape as its source, without trust in the recipe.
fn check_shape(file: &File, recipe: &Recipe, source: &File, length: u64) -> Result<(), StoreError> {
    let source = reading::elf_image(source, length)?;
    let image = reading::elf_image(file, recipe.size()).map_err(|_| StoreError::Differs(0))?;
    let shape =
        |image: &ElfImage| -> Vec<_> { image.segments.iter().map(|s| (s.memory, s.file_size, s.protection)).collect() };
    let same = shape(&source) == shape(&image)
        && (source.kind, source.machine, source.entry) == (image.kind, image.machine, image.entry)
        && (&source.soname, source.relro) == (&image.soname, image.relro)
        && source.build_id.as_ref().map(String::len) == image.build_id.as_ref().map(String::len);
    if same { Ok(()) } else { Err(StoreError::Differs(0)) }
}

/// Takes a lease that is granted only while no process can write to the source. Waits a short time for a process that
/// is just closing it.
fn lease_on<'a>(source: &'a File, origin: &origin::Origin) -> Result<Lease<'a>, StoreError> {
    let busy = |error: &io::Error| error.raw_os_error() == Some(Errno::EAGAIN as i32);
    let lease = match Lease::against_writers(source) {
        Err(error) if busy(&error) => {
            std::thread::sleep(reading::TICK);
            Lease::against_writers(source)
        }
        result => result,
    };
    lease.map_err(|error| match busy(&error) {
        true => StoreError::OpenForWriting(origin.path.clone()),
        false => StoreError::NoLease(error),
    })
}

/// Gives the finished file its mode and its name. Until then no process can open it.
fn publish(folder: &OwnedFd, file: &File, origin: &origin::Origin, mark: Mark) -> Result<(), StoreError> {
    let explain = |error: Errno| StoreError::io("linking an image into the store", error);
    fchmod(file, mark.mode()).map_err(explain)?;
    let label = origin.label.as_str();
    let linked = match linkat(file, "", folder, label, AtFlags::AT_EMPTY_PATH) {
        // Needs CAP_DAC_READ_SEARCH; the alternative needs /proc.
        Err(Errno::ENOENT | Errno::EPERM) => {
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, own.as_str(), folder, label, AtFlags::AT_SYMLINK_FOLLOW)
        }
        result => result,
    };
    // An older version of Pagelift, which has other locks, has made the same image.
    linked.or_else(|error| if error == Errno::EEXIST { Ok(()) } else { Err(explain(error)) })?;
    open_in(folder, OsStr::new(label), OFlag::O_PATH).map(drop).map_err(explain)
}
