//! `pagelift image setup`.

use super::StoreArg;
use crate::commands::service::systemd;
use crate::output::Output;
use crate::root_program;
use crate::say;
use address_space::PageSize;
use anyhow::bail;
use clap::{Args, ValueEnum};
use foreign_text::{quoted, quoted_path};
use image_store::{FileSystem, Store, StoreMode, StoreMount, StoreSize};
use std::path::PathBuf;
use std::process::Command;

/// `pagelift image setup`.
#[derive(Args, Clone)]
#[command(
    after_help = "Images are in memory: after a boot they are made again, by `pagelift image add` or by root's first use."
)]
pub struct SetupArgs {
    #[command(flatten)]
    store: StoreArg,
    /// Maximum memory of all images: bytes such as 2G, or a share of memory [default: the present size; for a new store 25%,
    /// with --hugetlbfs the whole pool].
    #[arg(long, value_name = "SIZE")]
    size: Option<StoreSize>,
    /// Mode of the store's directory. 755 lets every user use the images, 700 root alone [default: the present mode; 755
    /// for a new store].
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
    /// Let root's lifts make images without `pagelift image add` [default: the present setting; yes for a new store].
    #[arg(long, value_enum, value_name = "WORD")]
    automatic: Option<AutomaticArg>,
    /// Use hugetlb pool pages instead of transparent huge pages.
    #[arg(long)]
    hugetlbfs: bool,
    /// With --hugetlbfs, the size of the pages [default: the present size; for a new store the kernel's].
    #[arg(long, value_name = "SIZE", requires = "hugetlbfs")]
    page_size: Option<PageSize>,
    /// Also mount the store at every boot.
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "print")]
    install: Option<BootArg>,
    /// Only print the text that --install would write.
    #[arg(long, value_enum, value_name = "HOW")]
    print: Option<BootArg>,
    /// Only remove the configuration that --install has written for this directory.
    #[arg(long, conflicts_with_all = ["size", "mode", "automatic", "hugetlbfs", "install", "print"])]
    uninstall: bool,
    /// Folder of mount units.
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system", hide = true)]
    unit_folder: PathBuf,
    /// The file system table.
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab", hide = true)]
    fstab: PathBuf,
}

/// Makers of images.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AutomaticArg {
    /// Root's lifts make images, too: of installed programs that root owns and that were written at least a day ago.
    Yes,
    /// Only `pagelift image add` makes images.
    No,
}

/// Ways to mount a store at boot.
#[derive(Clone, Copy, ValueEnum)]
enum BootArg {
    /// A systemd mount unit, and a timer that runs `pagelift image gc` each day.
    Systemd,
    /// A line in /etc/fstab.
    Fstab,
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| format!("`{text}` is no mode: write 755 for example"))
}

/// Mounts a store, or prints the configuration that mounts it.
pub fn run(args: &SetupArgs) -> anyhow::Result<()> {
    let mount = mount_of(args)?;
    if args.uninstall {
        return uninstall(args, &mount);
    }
    let out = Output::Standard;
    match args.print {
        Some(BootArg::Systemd) => {
            let [service, timer] = mount.collection_units(&std::env::current_exe()?);
            for (name, text) in [mount.systemd_unit(), service, timer] {
                out.print_whole(&format!("# {}\n{text}\n", args.unit_folder.join(name).display()))?;
            }
            return Ok(());
        }
        Some(BootArg::Fstab) => {
            out.print_whole(&format!("{}\n", mount.fstab_line()))?;
            return Ok(());
        }
        None => {}
    }
    if matches!(args.install, Some(BootArg::Systemd)) {
        root_program::check(&std::env::current_exe()?)?;
        mount.check_units(&args.unit_folder)?;
    }
    let store = mount.mount()?;
    writeln!(out, "{}", describe(&store)?)?;
    match args.install {
        Some(BootArg::Systemd) => {
            let units = mount.install_units(&args.unit_folder, &std::env::current_exe()?)?;
            units.iter().try_for_each(|unit| writeln!(out, "written and enabled: {}", unit.display()))?;
            out.print(reload())?;
            if !systemd::is_running() {
                say!("pagelift: {}", systemd::WITHOUT);
            }
        }
        Some(BootArg::Fstab) => {
            mount.install_fstab_line(&args.fstab)?;
            writeln!(out, "written to {}: {}", args.fstab.display(), mount.fstab_line())?;
            writeln!(out, "have `pagelift image gc` run each day, too; --install systemd writes a timer for that")?;
        }
        None => say_if_boot_differs(args, &mount),
    }
    Ok(())
}

/// The mount with these options, and with the present setting of an option that is missing.
fn mount_of(args: &SetupArgs) -> anyhow::Result<StoreMount> {
    let file_system = if args.hugetlbfs { FileSystem::Hugetlbfs } else { FileSystem::Tmpfs };
    let mount = |mode| StoreMount::new(&args.store.path(), file_system, args.page_size, args.size, mode);
    let new = mount(StoreMode::default().permissions)?;
    let present = new.present_mode(&args.unit_folder, &args.fstab).unwrap_or_default();
    let automatic = args.automatic.map_or(present.automatic, |word| word == AutomaticArg::Yes);
    let mount = mount(args.mode.unwrap_or(present.permissions))?.with_automatic_images(automatic);
    let mount = mount.with_present_page_size(&args.unit_folder, &args.fstab);
    Ok(if args.size.is_some() { mount } else { mount.with_present_size(&args.unit_folder, &args.fstab) })
}

/// A mounted store keeps its mode until the next boot, which reads the written configuration.
fn say_if_boot_differs(args: &SetupArgs, mount: &StoreMount) {
    let at_boot = mount.mode_at_boot(&args.unit_folder, &args.fstab);
    if at_boot.is_some_and(|mode| mode != mount.mode()) {
        let how = "with --install systemd or fstab, as before";
        say!("pagelift: note: the next boot sets another --mode or --automatic; fix: the same command {how}");
    }
}

fn uninstall(args: &SetupArgs, mount: &StoreMount) -> anyhow::Result<()> {
    let out = Output::Standard;
    let units = mount.installed_units(&args.unit_folder)?;
    if systemd::is_running() {
        stop_timers(&units);
    }
    let removed = mount.uninstall_units(&args.unit_folder)?;
    removed.iter().try_for_each(|unit| writeln!(out, "removed {}", unit.display()))?;
    if mount.uninstall_fstab_line(&args.fstab)? {
        writeln!(out, "removed from {}: its line", args.fstab.display())?;
    } else if removed.is_empty() {
        bail!(
            "nothing mounts {} at boot: found none of its units in {}, and no line in {}",
            args.store.path().display(),
            args.unit_folder.display(),
            args.fstab.display()
        );
    }
    if !removed.is_empty() {
        out.print(reload())?;
    }
    if Store::open_to_map(&args.store.path()).is_ok() {
        writeln!(out, "the store stays mounted until the next boot; now: umount {}", quoted_path(args.store.path()))?;
    }
    Ok(())
}

/// A timer whose unit is gone would continue to start a service that is gone.
fn stop_timers(units: &[PathBuf]) {
    let is_timer = |unit: &&PathBuf| unit.extension().is_some_and(|extension| extension == "timer");
    for timer in units.iter().filter(is_timer).filter_map(|unit| unit.file_name()) {
        let stopped = Command::new("systemctl").arg("stop").arg(timer).status();
        if !stopped.is_ok_and(|status| status.success()) {
            say!("pagelift: note: `systemctl stop {}` failed; the next boot starts it no more", quoted(timer));
        }
    }
}

fn describe(store: &Store) -> anyhow::Result<String> {
    let kind = match store.file_system() {
        FileSystem::Tmpfs => "tmpfs",
        FileSystem::Hugetlbfs => "hugetlbfs",
    };
    let bound = match store.space()?.size {
        Some(size) => format!("at most {}", address_space::format_bytes(size)),
        None => "as much as the pool gives".to_owned(),
    };
    let automatic = if store.makes_automatic_images() { "" } else { ", images only by `pagelift image add`" };
    Ok(format!("{}: {kind} of {} pages, {bound}{automatic}", store.path().display(), store.page_size()))
}

/// A running systemd learns of the unit; without one it does at the next boot.
fn reload() -> &'static str {
    if !systemd::is_running() {
        return "";
    }
    match Command::new("systemctl").arg("daemon-reload").status() {
        Ok(status) if status.success() => "",
        _ => "run `systemctl daemon-reload`\n",
    }
}
