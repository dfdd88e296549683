//! The installed package: header, pkg-config, CMake, and the examples built and run against it.

use crate::library_folder;
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::{Context, Ending, Need, Test, test_case, workspace};

pub fn tests() -> Vec<Test> {
    let needs = |commands: &[&str]| {
        let mut needs: Vec<_> = commands.iter().map(|name| Need::Command((*name).to_owned())).collect();
        needs.push(Need::Thp);
        needs
    };
    vec![
        test_case("the_c_example_by_pkg_config", needs(&["gcc", "pkg-config"]), c_example),
        test_case("the_header_is_c99_and_c++", needs(&["gcc", "g++"]), header),
        test_case("small_and_with_nothing_but_its_interface", needs(&["nm", "readelf"]), small),
        test_case("it_asks_for_no_name_of_the_program", needs(&["nm"]), imports),
        test_case("the_c++_example_by_cmake", needs(&["g++", "cmake"]), cmake_example),
        test_case("cmake_moves_the_segments_of_a_target", needs(&["gcc", "cmake", "readelf"]), cmake_relayout),
    ]
}

fn installed(t: &Context) -> Result<PathBuf> {
    library_folder()?;
    let prefix = t.folder().join("prefix");
    let mut install = Command::new(workspace().join("packaging/library/install"));
    install.arg(&prefix).env_remove("DESTDIR");
    succeed(t, install)?;
    Ok(prefix)
}

fn succeed(t: &Context, command: Command) -> Result<String> {
    let output = t.run(command)?;
    ensure!(output.ending == Ending::Exit(0), "{:?}\n{}\n{}", output.ending, output.stdout, output.stderr);
    Ok(output.stdout)
}

fn shell(t: &Context, prefix: &Path, line: &str) -> Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(t.folder()).env("PREFIX", prefix).env("SOURCE", workspace());
    shell.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).env("LD_LIBRARY_PATH", prefix.join("lib"));
    succeed(t, shell)
}

fn c_example(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let build =
        "cc -Wall -Wextra -Werror $SOURCE/examples/c/lift_yourself.c $(pkg-config --cflags --libs pagelift) -o example";
    shell(t, &prefix, build)?;
    let said = shell(t, &prefix, "./example")?;
    ensure!(said.ends_with("table[12345] = 12345\n") && !said.starts_with("0 "), "it said {said}");
    let run_path = build.to_owned() + " -Wl,-rpath,$(pkg-config --variable=libdir pagelift)";
    shell(t, &prefix, &run_path)?;
    let again = shell(t, &prefix, "unset LD_LIBRARY_PATH; ./example")?;
    ensure!(again.ends_with("table[12345] = 12345\n"), "it said {again}");
    shell(t, &prefix, &build.replace("lift_yourself", "advise_a_file"))?;
    let said = shell(t, &prefix, "./example $PREFIX/lib/libpagelift.a")?;
    ensure!(said.contains("huge page") && said.contains("\nsum "), "it said {said}");
    Ok(())
}

fn header(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let line = "echo '#include <pagelift.h>' > one.c
        gcc -std=c99 -pedantic -Wall -Wextra -Werror -I$PREFIX/include -c one.c
        g++ -std=c++11 -pedantic -Wall -Wextra -Werror -I$PREFIX/include -x c++ -c one.c";
    shell(t, &prefix, line).map(drop)
}

fn cmake_example(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let line = "cmake -S $SOURCE/examples/c++ -B build -DCMAKE_PREFIX_PATH=$PREFIX && cmake --build build
        readelf -lW build/lift_yourself | grep -q 'LOAD .* 0x200000$'";
    shell(t, &prefix, line)?;
    for program in ["lift_yourself", "lift_yourself_static"] {
        let said = shell(t, &prefix, &format!("./build/{program}"))?;
        ensure!(said.ends_with("table[12345] = 12345\n") && !said.contains("\n0 huge"), "{program} said {said}");
    }
    Ok(())
}

fn cmake_relayout(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let project = "cmake_minimum_required(VERSION 3.16)
project(moved C)
find_package(Pagelift 0.1 REQUIRED)
add_executable(moved ${SOURCE}/tests/page_cache/programs/large_code.c)
target_include_directories(moved PRIVATE ${SOURCE}/tests/support/programs)
target_link_options(moved PRIVATE -Wl,-Ttext=0x1001000)
pagelift_align(moved RELAYOUT)
file(WRITE ${CMAKE_BINARY_DIR}/small.c \"int main(void) { return 0; }\")
add_executable(small ${CMAKE_BINARY_DIR}/small.c)
pagelift_align(small RELAYOUT)
";
    fs::write(t.folder().join("CMakeLists.txt"), project)?;
    let program = t.pagelift(&[])?.get_program().to_owned();
    let options = format!("-DSOURCE=$SOURCE -DCMAKE_PREFIX_PATH=$PREFIX -DPAGELIFT_EXECUTABLE={}", program.display());
    // pagelift_align runs after each link step, and leaves a small program as it is.
    let line = format!(
        "cmake -S . -B build {options} && cmake --build build && ./build/small && touch CMakeLists.txt && cmake --build build --clean-first
        readelf -lW build/moved | grep -q 'LOAD .* R E 0x200000$' && echo | ./build/moved"
    );
    let said = shell(t, &prefix, &line)?;
    ensure!(said.contains("laid out anew") && said.ends_with("ready\n"), "{said}");
    Ok(())
}

/// Limit of the bytes of the library that a process maps.
const MOST_MAPPED: u64 = 500 << 10;

/// The library has a few hundred KB, needs no other library, and has no symbol that a program may define by chance.
fn small(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let archive = prefix.join("lib/libpagelift.a");
    // The rest of the file has names for profilers, which no process maps.
    let sizes = shell(t, &prefix, "readelf -lW $PREFIX/lib/libpagelift.so | awk '$1 == \"LOAD\" { print $5 }'")?;
    let size = |word: &str| Ok(u64::from_str_radix(word.trim_start_matches("0x"), 16)?);
    let mapped = sizes.lines().map(size).sum::<Result<u64>>()?;
    println!("libpagelift.so maps {} KiB, libpagelift.a has {} KiB", mapped >> 10, fs::metadata(&archive)?.len() >> 10);
    ensure!((1..MOST_MAPPED).contains(&mapped), "{mapped} bytes are mapped, needed: fewer than {MOST_MAPPED}");
    let needed = shell(t, &prefix, "readelf -dW $PREFIX/lib/libpagelift.so")?;
    ensure!(!needed.contains("(NEEDED)") && needed.contains("INITFIRST"), "{needed}");
    let interface: Vec<String> =
        fs::read_to_string(workspace().join("packaging/library/symbols"))?.lines().map(ToOwned::to_owned).collect();
    let defined = |options: &str| -> Result<Vec<String>> {
        let listed = shell(t, &prefix, &format!("nm {options} --defined-only"))?;
        Ok(listed.lines().filter_map(|line| line.split(' ').nth(2)).map(ToOwned::to_owned).collect())
    };
    ensure!(defined("-g $PREFIX/lib/libpagelift.a")? == interface, "the archive defines more than its interface");
    let mut with_preload = interface;
    with_preload.extend(
        ["__gmon_start__", "dlsym", "dlvsym", "execl", "execle", "execlp", "execv", "execve", "execveat", "execvp"]
            .into_iter()
            .chain(["execvpe", "fexecve", "posix_spawn", "posix_spawnp"])
            .map(ToOwned::to_owned),
    );
    with_preload.sort();
    let mut found = defined("-D $PREFIX/lib/libpagelift.so")?;
    found.sort();
    ensure!(found == with_preload, "{found:?}");
    Ok(())
}

/// Weak symbols that the archive imports: a program without these links, too. Each is used only in a static program. A
/// dynamic program may define any symbol itself, so there the C library's functions are found without symbols.
const ASKED_FOR_BY_ARCHIVE: [(&str, &str); 4] = [
    ("__dl_iterate_phdr", "glibc's own name of dl_iterate_phdr; reserved for the C library"),
    ("__dso_handle", "in each object's start files, hidden from others; only its address is used"),
    ("__register_atfork", "glibc's own name of what pthread_atfork calls; reserved for the C library"),
    ("pthread_atfork", "musl's, which has no other name; in a static program each name has one definition"),
];

/// libpagelift.so imports nothing. A new import of the archive needs a reason why a program's definition does no harm.
fn imports(t: &Context) -> Result<()> {
    let prefix = installed(t)?;
    let undefined = |options: &str| -> Result<Vec<String>> {
        let listed = shell(t, &prefix, &format!("nm {options} --undefined-only"))?;
        let names = listed.lines().filter(|line| line.starts_with(' '));
        let mut names: Vec<String> = names.map(|line| line.trim().to_owned()).collect();
        names.sort();
        Ok(names)
    };
    let none = undefined("-D $PREFIX/lib/libpagelift.so")?;
    ensure!(none.is_empty(), "libpagelift.so asks for {none:?}");
    let expected = ASKED_FOR_BY_ARCHIVE.map(|(name, _)| format!("w {name}"));
    let found = undefined("$PREFIX/lib/libpagelift.a")?;
    ensure!(found == expected, "libpagelift.a asks for {found:?}");
    Ok(())
}
