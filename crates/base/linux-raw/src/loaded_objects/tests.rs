use super::*;
use core::ffi::CStr;
use std::collections::BTreeSet;

fn by_dynamic_linker(name: &CStr) -> usize {
    // SAFETY:
    // - the name ends with NUL.
    (unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }) as usize
}

fn library() -> Object {
    Process::this().unwrap().c_library().expect("the tests are linked dynamically")
}

fn objects() -> Objects {
    // SAFETY:
    // - these tests load no objects.
    unsafe { Process::this().unwrap().objects() }
}

#[test]
fn functions_are_where_the_dynamic_linker_finds_them() {
    for name in [c"dl_iterate_phdr", c"__register_atfork", c"getenv", c"fork", c"daemon", c"malloc"] {
        assert_eq!(library().function(name), Some(by_dynamic_linker(name)), "{name:?}");
    }
    assert_eq!(library().function(c"no_such_function"), None);
}

#[test]
fn variables_and_functions_that_must_be_chosen_are_no_functions() {
    let variable = library().symbol(c"environ").unwrap();
    assert!(!variable.is_function() && variable.address != 0);
    assert_eq!(library().function(c"environ"), None);
    // An STT_GNU_IFUNC on x86-64 and AArch64.
    let chosen = library().symbol(c"memcpy").is_some_and(Symbol::is_chosen_by_call);
    assert!(library().function(c"memcpy").is_none() && chosen && !variable.is_chosen_by_call());
    // An STT_TLS.
    assert_eq!(library().symbol(c"errno"), None);
}

/// glibc has the version for old programs beside the version for new ones.
#[test]
fn of_several_versions_the_newest_is_found() {
    let old = |version: &CStr| {
        // SAFETY:
        // - both texts end with NUL.
        (unsafe { libc::dlvsym(libc::RTLD_DEFAULT, c"realpath".as_ptr(), version.as_ptr()) }) as usize
    };
    let newest = library().function(c"realpath");
    assert_eq!(newest, Some(by_dynamic_linker(c"realpath")));
    #[cfg(target_arch = "x86_64")]
    assert!(![0, newest.unwrap()].contains(&old(c"GLIBC_2.2.5")) && old(c"GLIBC_2.3") == newest.unwrap());
    #[cfg(not(target_arch = "x86_64"))]
    let _ = old;
}

/// The entries of all versions, in which old programs and dlvsym(3) find a function.
#[test]
fn each_version_has_its_entry() {
    let mut found = BTreeSet::new();
    library().each_definition(c"realpath", &mut |entry| {
        // SAFETY:
        // - an entry of the C library's table.
        found.insert(library().bias() + unsafe { (*entry).value } as usize);
    });
    assert!(found.contains(&by_dynamic_linker(c"realpath")));
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY:
        // - both texts end with NUL.
        let old = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, c"realpath".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
        assert!(found.len() == 2 && found.contains(&(old as usize)));
    }
    library().each_definition(c"no_such_function", &mut |_| panic!("an entry of no such function"));
}

#[test]
fn without_the_kernels_file_the_same_list_is_found() {
    // SAFETY:
    // - the kernel's values for this process, which loads no objects meanwhile.
    let found: Vec<_> = unsafe {
        let process = Process::by_auxiliary_vector(|kind| libc::getauxval(kind.into()) as usize).unwrap();
        process.objects().map(|linked| linked.object.dynamic()).collect()
    };
    assert_eq!(found, objects().map(|linked| linked.object.dynamic()).collect::<Vec<_>>());
}

#[test]
fn the_list_is_that_of_dl_iterate_phdr() {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> libc::c_int {
        // SAFETY:
        // - the C library's description of an object, and the set below.
        unsafe { (*found.cast::<BTreeSet<Vec<u8>>>()).insert(CStr::from_ptr((*info).dlpi_name).to_bytes().to_vec()) };
        0
    }
    let mut expected: BTreeSet<Vec<u8>> = BTreeSet::new();
    // SAFETY:
    // - the callback takes a pointer to this set.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut expected).cast()) };
    let found: BTreeSet<Vec<u8>> = objects().map(|linked| linked.path().to_vec()).collect();
    assert_eq!(found, expected);
    let linker = Process::this().unwrap().linker().unwrap();
    assert!(objects().any(|linked| linked.object.is_same(&linker)));
}

#[test]
fn what_an_object_uses_is_seen() {
    let executable = objects().next().unwrap();
    assert!(executable.object.uses(&[b"dl_iterate_ph", b"nobody"]) && !executable.object.uses(&[b"nobody"]));
    assert_eq!((executable.path(), executable.object.name()), (&b""[..], None));
}
