//! The triggers of the packages: they give the files of `relayout` entries their layout again after each upgrade.

use crate::root::Root;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, PackageKind, copy_program, files_of, pack, program_source, shared_folder};

/// A program of another package.
const PROGRAM: &str = "opt/shop/server";
/// A program that a package has below `/lib`, which is a link to `/usr/lib`.
const UNMERGED: &str = "lib/unmerged/server";
const LIST: &str = "etc/pagelift/cache.conf";

/// Installs, upgrades and removes that package. dpkg succeeds each time, and prints the reason if the file keeps its layout.
pub fn fire(t: &Context) -> Result<()> {
    let packages = pack(t, PackageKind::Deb, "1")?;
    let program = disagreeing(t)?;
    let (sound, moved) = (fs::read(&program)?, laid_out(t, &program)?);
    ensure!(sound != moved, "its offsets agree already");
    let root = Root::new(t)?;
    root.bring("new", &packages)?;
    root.bring("old", &packed(t, "shop", PROGRAM, &program)?)?;
    root.bring("unmerged", &packed(t, "unmerged", UNMERGED, &program)?)?;
    let installed = || fs::read(root.path().join(PROGRAM));
    let list = |key: &str| root.write(LIST, &format!("{key} = [\"/{PROGRAM}\"]\n"));
    let dpkg = |words: &str, says: &str| {
        root.run(t, &format!("dpkg {words} >/tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}\ngrep '{says}' /tmp/said"))
    };
    root.run(t, "dpkg -i /new/*.deb && dpkg -i /old/shop_1.deb")?;
    ensure!(installed()? == sound, "it was laid out without a list");

    list("relayout")?;
    dpkg("-i /old/shop_2.deb", "belongs to the package shop")?;
    ensure!(installed()? == sound, "a file of a package was laid out unasked");

    list("relayout-packaged")?;
    dpkg("-i /old/shop_1.deb", "laid out anew")?;
    ensure!(installed()? == moved, "the upgraded file was not laid out");
    root.run(t, &format!("/{PROGRAM} </dev/null"))?;

    list("relayout")?;
    root.run(t, &format!("dpkg-divert --local --no-rename --divert /{PROGRAM}.distrib --add /{PROGRAM}"))?;
    dpkg("-i /old/shop_2.deb", "laid out anew")?;
    let distributed = fs::read(root.path().join(format!("{PROGRAM}.distrib")))?;
    ensure!(installed()? == moved && distributed == sound, "the diverted file was not copied");
    root.run(t, &format!("/{PROGRAM} </dev/null"))?;

    dpkg("-P shop", "a diverted file that is gone")?;
    ensure!(installed()? == moved, "the removal has changed the copy");

    root.run(t, "dpkg -i /unmerged/unmerged_1.deb")?;
    root.write(LIST, &format!("relayout-packaged = [\"/usr/{UNMERGED}\"]\n"))?;
    dpkg("-i /unmerged/unmerged_2.deb", "laid out anew")?;
    ensure!(fs::read(root.path().join("usr").join(UNMERGED))? == moved, "the file below /lib was not laid out");
    root.run(t, "dpkg -P unmerged")?;
    root.run(t, "dpkg -P pagelift libpagelift-dev libpagelift0")
}

/// Installs, upgrades and removes that package by rpm, in a copy of this machine. dpkg knows no package for the file.
pub fn fire_of_rpm(t: &Context) -> Result<()> {
    let packages = pack(t, PackageKind::Rpm, "1")?;
    let program = disagreeing(t)?;
    laid_out(t, &program)?;
    for version in ["1", "2"] {
        let topdir = t.folder().join("shop-rpm");
        let spec = t.folder().join("shop.spec");
        fs::write(&spec, SHOP.replace("VERSION", version).replace("SERVER", &program.to_string_lossy()))?;
        let mut build = Command::new("rpmbuild");
        build.arg("-bb").arg("--define").arg(format!("_topdir {}", topdir.display())).arg(&spec);
        t.run(build)?.success()?;
    }
    // Only the test's own folder is certain to be visible in the copy.
    let pagelift = t.folder().join("pagelift.rpm");
    let is_pagelift =
        |name: &str| name.strip_prefix("pagelift-").is_some_and(|rest| rest.starts_with(char::is_numeric));
    for file in files_of(&packages)? {
        if file.file_name().is_some_and(|name| is_pagelift(&name.to_string_lossy())) {
            fs::copy(file, &pagelift)?;
        }
    }
    let root = Root::over_this_machine(t)?;
    let script = "cd $FOLDER
        list() { mkdir -p /etc/pagelift && echo \"$1 = [\\\"/opt/shop/server\\\"]\" >/etc/pagelift/cache.conf; }
        rpm() { command rpm \"$@\" >said 2>&1 || { cat said; return 1; }; }
        same() { cmp /opt/shop/server $1 || { echo \"not $1 after $2\"; cat said; return 1; }; }
        shop() { echo shop-rpm/RPMS/noarch/shop-$1-1.noarch.rpm; }
        rpm --initdb
        rpm -i --nodeps pagelift.rpm
        rpm -i $(shop 1)
        same server 'an installation without a list'
        list relayout
        rpm -U $(shop 2)
        grep 'belongs to the package shop' said
        same server 'an upgrade of a packaged file'
        list relayout-packaged
        rpm -U --oldpackage $(shop 1)
        grep 'laid out anew' said
        same expected 'an upgrade'
        /opt/shop/server </dev/null
        if command rpm -V shop >said; then echo 'rpm -V finds no difference'; exit 1; fi
        grep '^S.5.*/opt/shop/server' said
        rpm -e shop
        test ! -e /opt/shop/server
        rpm -e pagelift";
    root.run(t, &script.replace("$FOLDER", &t.folder().to_string_lossy()))
}

/// Keeps each byte of the program.
const SHOP: &str = "%global __os_install_post %{nil}
%global debug_package %{nil}
Name: shop
Version: VERSION
Release: 1
Summary: A server
License: none
BuildArch: noarch
%global _binaries_in_noarch_packages_terminate_build 0
AutoReqProv: no

%description
A server.

%install
install -D -m 755 SERVER %{buildroot}/opt/shop/server

%files
/opt/shop/server
";

/// A program of four huge pages of code whose offsets disagree with their addresses.
fn disagreeing(t: &Context) -> Result<PathBuf> {
    let program = t.folder().join("server");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-fno-toplevel-reorder", "-fPIE", "-pie", "-Wl,-Ttext=0x1001000", "-o"]).arg(&program);
    gcc.arg(program_source("page_cache/large_code.c")?).arg("-I").arg(shared_folder());
    t.run(gcc)?.success()?;
    Ok(program)
}

/// The program in the other layout.
fn laid_out(t: &Context, program: &Path) -> Result<Vec<u8>> {
    let out = t.folder().join("expected");
    let mut align = t.pagelift(&["align", "--relayout", "-o"])?;
    align.arg(&out).arg(program);
    t.run(align)?.success()?;
    Ok(fs::read(out)?)
}

/// A folder with two versions of a package that has the program at this path.
fn packed(t: &Context, name: &str, path: &str, program: &Path) -> Result<PathBuf> {
    let packages = t.folder().join(name);
    fs::create_dir(&packages)?;
    for version in ["1", "2"] {
        let tree = t.folder().join(format!("{name}-{version}"));
        let file = tree.join(path);
        let folder = file.parent().context("a folder")?;
        for folder in [&tree.join("DEBIAN"), folder] {
            fs::create_dir_all(folder)?;
        }
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&tree)).chain([&*tree.join("DEBIAN")]) {
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
        }
        copy_program(t, program, &file)?;
        fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Shop <shop@example.org>\nDescription: a server\n"
        );
        fs::write(tree.join("DEBIAN/control"), control)?;
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Znone", "--build"]).arg(&tree);
        build.arg(packages.join(format!("{name}_{version}.deb")));
        t.run(build)?.success()?;
    }
    Ok(packages)
}
