//! The packages of `make deb` and `make rpm`: linted, packed again from another folder, and installed, used, upgraded,
//! removed and purged in roots that hold nothing else.

mod agent;
mod root;
mod triggers;

use anyhow::{Context as _, Result, ensure};
use root::Root;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use test_support::{
    Context, Need, PackageKind as Kind, Test, files_of, main_of, pack, packed_needs, packer, remove_packages,
    test_case, workspace,
};

fn main() -> ExitCode {
    let needs = |commands: &[&str]| {
        let mut needs: Vec<Need> = commands.iter().map(|name| Need::Command((*name).to_owned())).collect();
        needs.extend([Need::Root, Need::Thp]);
        needs
    };
    let case = |name: &str, commands: &[&str], body: fn(&Context) -> Result<()>| {
        let needs = needs(commands).into_iter().chain(packed_needs()).collect();
        test_case(format!("packages/{name}"), needs, body)
    };
    let tests: Vec<Test> = vec![
        case("the_symbols_are_the_interface", &[], symbols),
        case("deb_is_clean_and_reproducible", &["dh", "lintian"], |t| clean(t, Kind::Deb)),
        case("rpm_is_clean_and_reproducible", &["rpmbuild", "rpmlint"], |t| clean(t, Kind::Rpm)),
        case("deb_lives_in_a_clean_root", &["dh", "mmdebstrap", "systemctl"], deb_in_a_root),
        case("deb_purge_undoes_the_lifts_of_the_agent", &["dh", "gcc", "mmdebstrap"], agent::purged),
        case("deb_triggers_lay_files_out_again", &["dh", "dpkg-deb", "gcc", "mmdebstrap"], triggers::fire),
        case("rpm_triggers_lay_files_out_again", &["rpmbuild", "gcc"], triggers::fire_of_rpm),
        case("deb_lives_in_another_release", &["dh", "mmdebstrap"], deb_in_another_release),
        case("deb_for_development", &["dh", "gcc", "g++", "cmake", "pkg-config"], deb_for_development),
        case(
            "rpm_lives_in_a_clean_root",
            &["rpmbuild", "mmdebstrap", "systemctl", "cmake", "pkg-config"],
            rpm_in_a_root,
        ),
    ];
    let status = main_of(tests);
    remove_packages();
    status
}

/// `libpagelift0.symbols`, which Debian's tools check at each build, lists exactly the interface.
fn symbols(_: &Context) -> Result<()> {
    let folder = workspace().join("packaging");
    let mut interface: Vec<String> =
        fs::read_to_string(folder.join("library/symbols"))?.lines().map(str::to_owned).collect();
    // The manual page is about each function of the header.
    let page = fs::read_to_string(folder.join("library/libpagelift.3.in"))?;
    let missing: Vec<_> = interface.iter().filter(|name| !page.contains(&format!("{name}("))).collect();
    ensure!(missing.is_empty(), "packaging/library/libpagelift.3.in does not describe {missing:?}");
    // The shared library watches dlopen, too, and keeps itself out of the environment of other programs.
    interface.extend(["dlsym", "dlvsym"].map(str::to_owned));
    interface.extend(
        [
            "execl",
            "execle",
            "execlp",
            "execv",
            "execve",
            "execveat",
            "execvp",
            "execvpe",
            "fexecve",
            "posix_spawn",
            "posix_spawnp",
        ]
        .map(str::to_owned),
    );
    interface.sort();
    let listed = fs::read_to_string(folder.join("debian/libpagelift0.symbols"))?;
    let listed: Vec<&str> =
        listed.lines().filter_map(|line| Some(line.strip_prefix(' ')?.split_once("@Base ")?.0)).collect();
    ensure!(listed == interface, "{listed:?} in libpagelift0.symbols, {interface:?} in packaging/library/symbols");
    Ok(())
}

/// No complaint beyond the exceptions, each of which has a reason; the same bytes from another folder, at a later time,
/// with another user's settings.
fn clean(t: &Context, kind: Kind) -> Result<()> {
    let packages = pack(t, kind, "1")?;
    let mut lint = match kind {
        Kind::Deb => Command::new("lintian"),
        Kind::Rpm => Command::new("rpmlint"),
    };
    match kind {
        Kind::Deb => lint.args(["--allow-root", "--fail-on", "error,warning"]),
        Kind::Rpm => lint.arg("--config").arg(workspace().join("packaging/rpm/rpmlint.toml")),
    };
    let said = t.run({
        lint.args(files_of(&packages)?);
        lint
    })?;
    let text = said.success()?.stdout;
    match kind {
        Kind::Deb => ensure!(text.is_empty(), "{text}"),
        Kind::Rpm => ensure!(text.contains("3 packages") && text.contains(" 0 errors, 0 warnings"), "{text}"),
    }

    let elsewhere = t.folder().join("a-copy-of-the-sources");
    fs::create_dir(&elsewhere)?;
    let mut copy = Command::new("cp");
    copy.arg("-R").current_dir(workspace()).arg("--target-directory").arg(&elsewhere);
    copy.args(["Makefile", "Cargo.toml", "CHANGELOG.md", "README.md", "SECURITY.md"]);
    copy.args(["LICENSE", "LICENSE-MIT", "LICENSE-APACHE"]);
    t.run({
        copy.args(["packaging", "include", "examples", "docs"]);
        copy
    })?
    .success()?;
    let again = t.folder().join("again");
    let make = packer(&elsewhere, kind, "1", &again)?;
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(make.get_program()).args(make.get_args());
    shell.envs(make.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("TZ", "Asia/Tokyo");
    t.run(shell)?.success()?;
    for file in files_of(&packages)? {
        let copy = again.join(file.file_name().context("a name")?);
        ensure!(fs::read(&file)? == fs::read(&copy)?, "{} and {} differ", file.display(), copy.display());
    }
    Ok(())
}

/// A user's steps with an installed Pagelift; exit status 0 if all succeed.
const USE: &str = "pagelift --version
    pagelift demo --for 2s --pages thp > /tmp/demo
    grep -q 'text .* thp' /tmp/demo
    pagelift run --via preload --pages thp -- cat /proc/self/maps > /tmp/maps 2> /tmp/said
    grep -q 'libpagelift.so.0' /tmp/maps
    pagelift run --heap=thp --heap-allocator mimalloc -- cat /proc/self/maps > /tmp/maps 2> /tmp/said
    grep -q '/usr/libexec/pagelift/libpagelift_heap.so' /tmp/maps
    rm /tmp/demo /tmp/maps /tmp/said";
const UNITS: [&str; 2] = ["pagelift-cache.timer", "pagelift-cache-lock.service"];

/// A file that `pagelift enable` writes: with it the service starts only if Pagelift is installed.
const SERVICE: &str = "etc/systemd/system/demo.service.d/zz-pagelift.conf";
const LIFTED: &str = "# Written by `pagelift enable`. `pagelift disable` removes it.
# Unit: demo.service
# Way: run
# Options: run
# ExecStart=/bin/true
# Folder: made
[Service]
ExecStart=
ExecStart=/usr/bin/pagelift run -- /bin/true
";

/// The file of a copy of Pagelift in another folder, which a removal leaves.
const OTHER_SERVICE: &str = "etc/systemd/system/other.service.d/zz-pagelift.conf";

/// Writes the files of two copies of Pagelift, of which one is the package's.
fn enable_services(t: &Context, root: &Root) -> Result<()> {
    root.write(SERVICE, LIFTED)?;
    let others = LIFTED.replace("demo.service", "other.service").replace("/usr/bin/pagelift", "/opt/bin/pagelift");
    root.write(OTHER_SERVICE, &others)?;
    root.run(t, "pagelift enabled | grep -q demo.service")
}

/// The administrator's files, which a removal leaves.
const LEFT: [&str; 4] =
    ["etc/pagelift", "etc/pagelift/cache.conf", "etc/systemd/system/other.service.d", OTHER_SERVICE];

fn deb_in_a_root(t: &Context) -> Result<()> {
    let (old, new) = (pack(t, Kind::Deb, "1")?, pack(t, Kind::Deb, "2")?);
    let root = Root::new(t)?;
    let before = root.files()?;
    root.bring("old", &old)?;
    root.bring("new", &new)?;
    root.run(t, "dpkg -i /old/*.deb && test -z \"$(dpkg --verify pagelift libpagelift0 libpagelift-dev)\"")?;
    root.run(t, USE)?;
    root.units_are_sound(t)?;
    ensure!(root.enabled(&UNITS)?.is_empty(), "the installation has enabled units");
    root.enable(t, &UNITS)?;
    root.write("etc/pagelift/cache.conf", "/usr/bin/dpkg\n")?;

    root.run(t, "dpkg -i /new/*.deb && dpkg-query -W -f '${Version}\\n' pagelift | grep -qx '.*-2'")?;
    root.run(t, USE)?;
    ensure!(root.enabled(&UNITS)?.len() == UNITS.len(), "the upgrade has disabled units");
    enable_services(t, &root)?;
    root.run(t, "dpkg -r pagelift libpagelift-dev libpagelift0; test ! -e /usr/bin/pagelift")?;
    root.run(t, "dpkg -P pagelift libpagelift-dev libpagelift0; ! dpkg -l '*pagelift*' | grep '^[^un ].*pagelift'")?;
    ensure!(root.enabled(&UNITS)?.is_empty(), "links of {:?} are left", root.enabled(&UNITS)?);
    root.left(&before, &LEFT)
}

/// Packed on this release, used on the older or newer release.
fn deb_in_another_release(t: &Context) -> Result<()> {
    let packages = pack(t, Kind::Deb, "1")?;
    let root = Root::of_another_release(t)?;
    let before = root.files()?;
    root.bring("new", &packages)?;
    root.run(t, "dpkg -i /new/*.deb && test -z \"$(dpkg --verify pagelift libpagelift0 libpagelift-dev)\"")?;
    root.run(t, USE)?;
    root.run(t, "dpkg -P pagelift libpagelift-dev libpagelift0")?;
    root.left(&before, &[])
}

/// Used in a copy of this machine, which has the compilers.
fn deb_for_development(t: &Context) -> Result<()> {
    let packages = pack(t, Kind::Deb, "1")?;
    let root = Root::over_this_machine(t)?;
    let script = "dpkg -i $PACKAGES/*.deb
        cd /tmp
        cp -R /usr/share/doc/libpagelift-dev/examples pagelift-examples
        cd pagelift-examples
        test \"$(pkg-config --variable=prefix pagelift)\" = /usr
        dpkg -L libpagelift-dev | grep -q '/man3/libpagelift.3.gz$'
        dpkg -L pagelift | grep -q '/docs/guides/from-inside.md$'
        cc c/lift_yourself.c $(pkg-config --cflags --libs pagelift) -o by-pkg-config
        ./by-pkg-config | grep -q 'table.12345. = 12345'
        cmake -S c++ -B build
        cmake --build build
        grep -q '^Pagelift_DIR:PATH=/usr/lib/[^/]*/cmake/Pagelift' build/CMakeCache.txt
        for program in build/lift_yourself build/lift_yourself_static; do
            $program | grep -q 'table.12345. = 12345'
        done
        ldd by-pkg-config | grep -q 'libpagelift.so.0 => /'";
    root.run(t, &script.replace("$PACKAGES", &packages.to_string_lossy()))
}

fn rpm_in_a_root(t: &Context) -> Result<()> {
    let (old, new) = (pack(t, Kind::Rpm, "1")?, pack(t, Kind::Rpm, "2")?);
    let root = Root::new(t)?;
    root.make_rpm_root(t)?;
    let before = root.files()?;
    root.rpm(t, "-i", &files_of(&old)?)?;
    root.rpm(t, "-V", &["pagelift", "pagelift-libs", "pagelift-devel"].map(PathBuf::from))?;
    root.run(t, USE)?;
    root.units_are_sound(t)?;
    ensure!(root.enabled(&UNITS)?.is_empty(), "the installation has enabled units");
    root.enable(t, &UNITS)?;
    root.write("etc/pagelift/cache.conf", "/usr/bin/dpkg\n")?;
    rpm_for_development(t, &root)?;

    root.rpm(t, "-U", &files_of(&new)?)?;
    root.rpm(t, "-V", &["pagelift", "pagelift-libs", "pagelift-devel"].map(PathBuf::from))?;

    root.run(t, USE)?;
    ensure!(root.enabled(&UNITS)?.len() == UNITS.len(), "the upgrade has disabled units");
    enable_services(t, &root)?;
    // rpm has no purge: only files of others are left.
    root.rpm(t, "-e", &["pagelift", "pagelift-libs", "pagelift-devel"].map(PathBuf::from))?;
    root.left(&before, &LEFT)
}

fn rpm_for_development(t: &Context, root: &Root) -> Result<()> {
    let script = "export PKG_CONFIG_SYSROOT_DIR=$ROOT PKG_CONFIG_LIBDIR=$ROOT/usr/lib64/pkgconfig
        docs=$ROOT/usr/share/doc/pagelift-devel
        test -e $ROOT/usr/share/man/man3/libpagelift.3.gz
        test -e $ROOT/usr/share/doc/pagelift/docs/guides/from-inside.md
        cc $docs/c/lift_yourself.c $(pkg-config --cflags --libs pagelift) -o $ROOT/tmp/by-pkg-config
        cmake -S $docs/c++ -B build -DPagelift_DIR=$ROOT/usr/lib64/cmake/Pagelift
        cmake --build build
        LD_LIBRARY_PATH=$ROOT/usr/lib64 ./build/lift_yourself | grep -q 'table.12345. = 12345'";
    let mut shell = Command::new("sh");
    shell.args(["-ec", script]).current_dir(t.folder()).env("ROOT", root.path());
    t.run(shell)?.success()?;
    root.run(t, "/tmp/by-pkg-config | grep -q 'table.12345. = 12345'; rm /tmp/by-pkg-config")
}
