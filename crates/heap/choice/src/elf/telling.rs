//! Names of symbols that identify allocators, runtimes and checking tools.

use heap_abi::ACCOUNT_SYMBOL;

/// Identifying names, in the order of [`by_length`]; allocators are often built with a prefix before [`PREFIXED`].
pub(super) const NAMES: [&str; 40] = [
    "fork",
    "free",
    "dlsym",
    "calloc",
    "dlvsym",
    "malloc",
    "Py_Main",
    "mallctl",
    "mi_malloc",
    "tc_malloc",
    "JLI_Launch",
    "mi_version",
    "tc_version",
    "__asan_init",
    "__libc_free",
    "__lsan_init",
    "__msan_init",
    "__nsan_init",
    "__tsan_init",
    "thrd_create",
    "Py_BytesMain",
    "__dfsan_init",
    "__hwasan_init",
    "__libc_calloc",
    "__libc_malloc",
    "__libc_realloc",
    "__memprof_init",
    "pthread_create",
    "__libc_memalign",
    "_Py_DecRefShared",
    "runtime.mallocgc",
    "__libc_start_main",
    "__malloc_allzerop",
    "__malloc_replaced",
    "__lsan_do_leak_check",
    "napi_create_function",
    ACCOUNT_SYMBOL,
    "TCMallocInternalMalloc",
    "_ZN2v87Isolate3NewERKNS0_12CreateParamsE",
    STARTS_CPP_THREAD,
];

/// The function of libstdc++ that starts each std::thread (since GCC 5).
pub(crate) const STARTS_CPP_THREAD: &str =
    "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE";

/// Sort key of [`NAMES`]: most names differ in length.
fn by_length(name: &[u8]) -> (usize, &[u8]) {
    (name.len(), name)
}

/// Names that may have something before them.
const PREFIXED: [&str; 2] = ["mallctl", "tc_malloc"];

/// Stands in [`super::ElfFacts::exports`] for each of C++'s operators new, in [`super::ElfFacts::imports`] for each operator new
/// or delete.
pub(crate) const OPERATOR_NEW: &str = "operator new";
/// Beginnings of the names of C++'s global operators new, on machines of 64 bits (Itanium C++ ABI, 5.1.5).
const NEW: [&str; 2] = ["_Znwm", "_Znam"];
/// Beginnings of the names of global operators delete.
const DELETE: [&str; 2] = ["_ZdlPv", "_ZdaPv"];
/// All operators new: plain, that do not throw, aligned, and both.
pub(super) const OPERATORS_NEW: [&str; 8] = [
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "_ZnwmSt11align_val_tRKSt9nothrow_t",
    "_ZnamSt11align_val_tRKSt9nothrow_t",
];

/// The name under which a symbol is kept; `None` if it identifies nothing.
pub(super) fn kept_name(bare: &[u8], is_defined: bool) -> Option<&str> {
    let begins = |names: &[&str]| names.iter().any(|name| bare.starts_with(name.as_bytes()));
    if bare.starts_with(b"_Z") && (begins(&NEW) || !is_defined && begins(&DELETE)) {
        return std::str::from_utf8(bare).is_ok().then_some(OPERATOR_NEW);
    }
    let is_name = || NAMES.binary_search_by(|name| by_length(name.as_bytes()).cmp(&by_length(bare))).is_ok();
    let is_kept = is_name() || PREFIXED.iter().any(|end| bare.ends_with(end.as_bytes()));
    if is_kept { std::str::from_utf8(bare).ok() } else { None }
}

/// Number of bytes that distinguish most names; no name that is kept without a prefix is shorter.
const BEGINNING: usize = 4;

/// Set of the beginnings of all names that are kept without a prefix, as bits at [`place_of_beginning`].
const BEGINNINGS: [u64; 64] = {
    let mut set = [0; 64];
    add_beginnings(&mut set, &NAMES);
    add_beginnings(&mut set, &NEW);
    add_beginnings(&mut set, &DELETE);
    set
};

const fn add_beginnings(set: &mut [u64; 64], names: &[&str]) {
    let mut index = 0;
    while index < names.len() {
        let Some(beginning) = names[index].as_bytes().first_chunk::<BEGINNING>() else { panic!("a shorter name") };
        let (word, bit) = place_of_beginning(*beginning);
        set[word] |= 1 << bit;
        index += 1;
    }
}

/// Word and bit of a beginning in a set of 64 words.
const fn place_of_beginning(beginning: [u8; BEGINNING]) -> (usize, u32) {
    // The highest bits of a product with 2³² divided by the golden ratio depend on all of its bytes.
    let place = u32::from_le_bytes(beginning).wrapping_mul(0x9e37_79b9) >> (u32::BITS - 12);
    ((place / u64::BITS) as usize, place % u64::BITS)
}

/// False if no name that [`kept_name`] keeps without a prefix begins like `text`.
pub(super) fn may_be_kept(text: &[u8]) -> bool {
    text.first_chunk::<BEGINNING>().is_some_and(|&beginning| {
        let (word, bit) = place_of_beginning(beginning);
        (BEGINNINGS[word] >> bit) & 1 == 1
    })
}

/// True if a name in this table may be kept that has something before it.
pub(super) fn may_have_prefixed(table: &[u8]) -> bool {
    PREFIXED.iter().any(|end| memchr::memmem::find(table, end.as_bytes()).is_some())
}

/// Texts in a table of names, one for each kind of defined symbol that [`kept_name`] keeps and that is not in [`NAMES`]. Names with
/// `@` are cut there.
pub(super) const SIGNS_OF_OTHERS: [&[u8]; 5] = [b"mallctl\0", b"tc_malloc\0", b"_Znwm", b"_Znam", b"@"];

/// Ends of names, with the NUL behind them, for which an executable's own symbol table is searched: allocators that are linked
/// in are not exported.
pub(super) const ENDS: [&[u8]; 4] = [b"mallctl\0", b"_malloc\0", b"TCMallocInternalMalloc\0", b"_version\0"];
/// Functions of a static C library beside them.
pub(super) const ENDS_IN_STATIC: [&[u8]; 3] = [b"__malloc_replaced\0", b"__malloc_allzerop\0", b"pthread_create\0"];
/// Names for which that table is read. A name may be the end of a longer one, whose text it shares.
const SEARCHED: [&str; 10] = [
    "mallctl",
    "tc_malloc",
    "tc_version",
    "TCMallocInternalMalloc",
    "mi_malloc",
    "mi_version",
    "__libc_malloc",
    "__malloc_replaced",
    "__malloc_allzerop",
    "pthread_create",
];

/// True for texts for which a symbol table is read.
pub(super) fn is_searched(text: &str) -> bool {
    SEARCHED.iter().any(|name| text.ends_with(name))
}

/// Checking tools that replace the allocator, each by symbols of its runtime and by beginnings of its library's name.
const CHECKERS: [(&str, &[&str], &[&str]); 8] = [
    ("HWAddressSanitizer", &["__hwasan_init"], &["libhwasan.so", "libclang_rt.hwasan"]),
    ("AddressSanitizer", &["__asan_init"], &["libasan.so", "libclang_rt.asan"]),
    ("ThreadSanitizer", &["__tsan_init"], &["libtsan.so", "libclang_rt.tsan"]),
    ("MemorySanitizer", &["__msan_init"], &["libclang_rt.msan"]),
    ("DataFlowSanitizer", &["__dfsan_init"], &["libclang_rt.dfsan"]),
    ("MemProf", &["__memprof_init"], &["libclang_rt.memprof"]),
    ("NumericalStabilitySanitizer", &["__nsan_init"], &["libclang_rt.nsan"]),
    ("LeakSanitizer", &["__lsan_init", "__lsan_do_leak_check"], &["liblsan.so", "libclang_rt.lsan"]),
];

/// The checking tool that this symbol belongs to.
pub(crate) fn checker_of_symbol(name: &str) -> Option<&'static str> {
    CHECKERS.iter().find(|(_, symbols, _)| symbols.contains(&name)).map(|(tool, ..)| *tool)
}

/// The checking tool whose library has this file name or path.
pub(crate) fn checker_of_library(path: &str) -> Option<&'static str> {
    let file_name = path.rsplit('/').next()?;
    let begins = |names: &&[&str]| names.iter().any(|name| file_name.starts_with(name));
    CHECKERS.iter().find(|(_, _, names)| begins(names)).map(|(tool, ..)| *tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_cpp_have_one_name() {
        for name in OPERATORS_NEW {
            assert_eq!(
                [true, false].map(|is_defined| kept_name(name.as_bytes(), is_defined)),
                [Some(OPERATOR_NEW); 2],
                "{name}"
            );
        }
        // A program that calls delete has memory from new; a definition of delete alone provides none.
        assert_eq!([true, false].map(|is_defined| kept_name(b"_ZdaPvm", is_defined)), [None, Some(OPERATOR_NEW)]);
        assert_eq!(
            ["malloc", "my_malloc", "je_mallctl"].map(|name| kept_name(name.as_bytes(), true)),
            [Some("malloc"), None, Some("je_mallctl")]
        );
    }

    #[test]
    fn beginnings_tell_names_apart() {
        for name in NAMES.iter().chain(&OPERATORS_NEW).chain(&["_ZdlPvm", "_ZdaPv"]) {
            assert!(may_be_kept(name.as_bytes()) && !may_be_kept(&name.as_bytes()[..BEGINNING - 1]), "{name}");
        }
        let others = ["strlen", "_ZSt4cout", "gtk_init", "xmalloc", "\0fork", "fre\0"];
        assert!(!others.iter().any(|name| may_be_kept(name.as_bytes())));
        assert!(may_have_prefixed(b"\0x_tc_malloc\0") && may_have_prefixed(b"je_mallctl@V1\0"));
        assert!(!may_have_prefixed(b"\0malloc\0tc_mallo\0"));
    }

    #[test]
    fn names_are_sorted() {
        assert!(NAMES.is_sorted_by_key(|name| by_length(name.as_bytes())));
    }

    #[test]
    fn other_names_have_signs() {
        for name in ["je_mallctl", "x_tc_malloc", "_ZnwmX", "_Znam", "malloc@@GLIBC_2.2.5"] {
            let text = [name.as_bytes(), b"\0"].concat();
            assert!(SIGNS_OF_OTHERS.iter().any(|sign| memchr::memmem::find(&text, sign).is_some()), "{name}");
        }
        for prefixed in PREFIXED {
            assert!(SIGNS_OF_OTHERS.iter().any(|sign| sign.strip_suffix(b"\0") == Some(prefixed.as_bytes())));
        }
        assert!(NEW.iter().all(|name| SIGNS_OF_OTHERS.contains(&name.as_bytes())));
    }

    #[test]
    fn every_name_that_is_searched_has_an_end_that_finds_it() {
        for name in SEARCHED {
            let text = [name.as_bytes(), b"\0"].concat();
            assert!(ENDS.iter().chain(&ENDS_IN_STATIC).any(|end| text.ends_with(end)), "{name}");
            assert!(is_searched(&format!("prefix_{name}")) && kept_name(name.as_bytes(), true) == Some(name), "{name}");
        }
    }

    #[test]
    fn checking_tools_are_known_by_symbols_and_libraries() {
        assert_eq!(checker_of_symbol("__asan_init"), Some("AddressSanitizer"));
        assert_eq!(checker_of_symbol("__asan_init_v4"), None);
        let libraries =
            ["libasan.so.8", "/opt/lib/libhwasan.so.0", "libclang_rt.tsan-x86_64.so", "libubsan.so.1", "libc.so.6"];
        let tools = libraries.map(checker_of_library);
        assert_eq!(tools, [Some("AddressSanitizer"), Some("HWAddressSanitizer"), Some("ThreadSanitizer"), None, None]);
        for (_, symbols, _) in CHECKERS {
            assert!(symbols.iter().all(|symbol| NAMES.contains(symbol)), "{symbols:?}");
        }
    }
}
