//! The C interface, `include/pagelift.h`. Structures carry their size, so that a program that was built with an older or
//! a newer header works with this library: fields that one side does not know are left out.

use crate::advise::Unadvised;
use crate::fork_handlers;
use crate::library::{CoveredNow, Library};
use crate::own_state::{Call, Unusable};
use crate::report::LiftReport;
use address_space::{Address, AddressRange, PageSize};
use alloc::borrow::ToOwned;
use alloc::ffi::CString;
use alloc::string::{String, ToString};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use lift_plan::{Edges, Kind, Kinds, Numa, ObjectChoice, Pages, Policy, Source, WritablePages};

/// A logger: receives a line of text and the caller's context.
type Logger = unsafe extern "C" fn(*const c_char, *mut c_void);
/// The logger of the older entry point, without a context.
type PlainLogger = unsafe extern "C" fn(*const c_char);

/// `pagelift_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Options {
    size: usize,
    pages: c_int,
    writable_pages: c_int,
    edges: c_int,
    lift: c_uint,
    page_size: u64,
    max_memory: u64,
    objects: *const c_char,
    logger: Option<Logger>,
    context: *mut c_void,
    later_objects: c_int,
    /// Behind the padding of the fields that the first header had: programs that were built with it leave that unset.
    numa: *const c_char,
}

/// Size of a message in a report in bytes, with its NUL.
const MESSAGE: usize = 512;

/// `pagelift_report`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CReport {
    size: usize,
    considered_bytes: u64,
    covered_bytes: u64,
    hugetlb_bytes: u64,
    thp_bytes: u64,
    advised_bytes: u64,
    made_resident_bytes: u64,
    huge_pages: u64,
    microseconds: u64,
    lifted_ranges: u64,
    refused_ranges: u64,
    message: [c_char; MESSAGE],
    file_bytes: u64,
}

const OK: c_int = 0;
const PARTIAL: c_int = 1;
const INVALID: c_int = -1;
const NOTHING: c_int = -2;
const BUSY: c_int = -3;
const NO_MEMORY: c_int = -4;
const NOT_SEEN: c_int = -5;
const FAULT: c_int = -6;

/// The text of a result. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn pagelift_error_text(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

fn text(code: c_int) -> &'static CStr {
    match code {
        OK => c"done",
        PARTIAL => c"done in part: the report says what is left and why",
        INVALID => c"an option or an argument has no valid value",
        NOTHING => c"nothing could be lifted: the report says why",
        BUSY => c"the library was called from its own callback",
        NO_MEMORY => c"no memory for what the library itself needs",
        NOT_SEEN => c"this process cannot be read: /proc is not mounted or not readable",
        FAULT => c"unexpected address space: an internal error of the library",
        _ => c"no result of this library",
    }
}

/// The library's version. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn pagelift_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

const DEFAULTS: Options = Options {
    size: size_of::<Options>(),
    pages: 0,
    writable_pages: 0,
    edges: 0,
    lift: 0,
    page_size: 0,
    max_memory: 0,
    objects: core::ptr::null(),
    logger: None,
    context: core::ptr::null_mut(),
    later_objects: 0,
    numa: core::ptr::null(),
};

/// Fills the options with their defaults.
///
/// # Safety
/// `options` is NULL or points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_options_init(options: *mut Options, size: usize) {
    if options.is_null() || size < size_of::<usize>() {
        return;
    }
    let known = size.min(size_of::<Options>());
    // SAFETY:
    // - the caller's promise: there are `size` bytes. Zero is the default of every field but the size.
    unsafe {
        core::ptr::write_bytes(options.cast::<u8>(), 0, size);
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(&DEFAULTS).cast::<u8>(), options.cast::<u8>(), known);
        options.cast::<usize>().write(size);
    }
}

/// The options that the caller's header and this library both know; the rest has its default.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its first field says, with a logger that takes a text and the context.
unsafe fn read_options(options: *const Options) -> Option<Options> {
    let mut read = DEFAULTS;
    if !options.is_null() {
        // SAFETY:
        // - the caller's promise.
        let size = unsafe { options.cast::<usize>().read() };
        if size < size_of::<usize>() {
            return None;
        }
        let known = size.min(size_of::<Options>());
        // SAFETY:
        // - the caller's promise; every field is a number or a pointer, of which zero is a value.
        unsafe {
            core::ptr::copy_nonoverlapping(options.cast::<u8>(), core::ptr::from_mut(&mut read).cast::<u8>(), known);
        }
    }
    Some(read)
}

impl Options {
    /// # Safety
    /// `objects` and `numa` are NULL or point to texts that end with NUL.
    unsafe fn policy(&self) -> Result<Policy, String> {
        let no = |what: &str| Err(what.to_owned() + " has a value that pagelift.h does not name");
        // SAFETY:
        // - the caller's promise.
        let (objects, numa) = unsafe { (text_of("objects", self.objects)?, text_of("numa", self.numa)?) };
        let objects = objects.map_or(Ok(ObjectChoice::default()), str::parse)?;
        let numa =
            numa.map_or(Ok(Numa::default()), |text| text.parse().map_err(|why: String| "numa: ".to_owned() + &why))?;
        let page_size = match self.page_size {
            0 => None,
            bytes => Some(PageSize::new(bytes).map_err(|error| error.to_string())?),
        };
        Ok(Policy {
            pages: match self.pages {
                0 => Pages::Auto,
                1 => Pages::Hugetlb,
                2 => Pages::Thp,
                3 => Pages::File,
                _ => return no("pages"),
            },
            writable_pages: match self.writable_pages {
                0 => WritablePages::Thp,
                1 => WritablePages::Hugetlb,
                _ => return no("writable_pages"),
            },
            edges: match self.edges {
                0 => Edges::Exact,
                1 => Edges::MergeReadOnly,
                _ => return no("edges"),
            },
            kinds: match self.lift {
                0 => Kinds::USUAL,
                bits if bits < 1 << KINDS.len() => {
                    let wanted = KINDS.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0);
                    Kinds::of(&wanted.map(|(_, kind)| *kind).collect::<alloc::vec::Vec<_>>())
                }
                _ => return no("lift"),
            },
            page_size,
            objects,
            max_memory: (self.max_memory != 0).then_some(self.max_memory),
            numa,
            seal: false,
        })
    }

    fn log(&self, call: &Call, line: &str) {
        if let (Some(logger), Ok(line)) = (self.logger, CString::new(line)) {
            // SAFETY:
            // - whoever gave the options has promised that the function takes a text and this context (`read_options`); the
            //   text lives during the call.
            call.outside(|| unsafe { logger(line.as_ptr(), self.context) });
        }
    }
}

/// The text of an option, if it has one.
///
/// # Safety
/// `text` is NULL or points to a text that ends with NUL and outlives `'a`.
unsafe fn text_of<'a>(option: &str, text: *const c_char) -> Result<Option<&'a str>, String> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY:
    // - the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| option.to_owned() + " is not UTF-8")
}

/// The bits of `lift`, lowest first.
const KINDS: [Kind; 5] = [Kind::Text, Kind::Rodata, Kind::Data, Kind::Bss, Kind::Heap];

/// Lifts this process. See the header.
///
/// # Safety
/// `options` is NULL or sound as the header says, and so is `report`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_lift(options: *const Options, report: *mut CReport) -> c_int {
    // SAFETY:
    // - the caller's promise.
    let Some(options) = (unsafe { read_options(options) }) else { return INVALID };
    let call = match Call::begin() {
        Ok(call) => call,
        Err(why) => return code_of(why),
    };
    // SAFETY:
    // - the caller's promise.
    let policy = match unsafe { options.policy() } {
        Ok(policy) => policy,
        Err(why) => {
            options.log(&call, &why);
            // SAFETY:
            // - the caller's promise.
            unsafe { write_report(report, &LiftReport::nothing(why)) };
            return INVALID;
        }
    };
    let later = options.later_objects != 0;
    #[cfg(feature = "preload")]
    if later {
        crate::preload::watch(&policy);
    }
    let lifted = call.with_objects_and_library(|library| {
        library.later = later.then(|| policy.clone());
        library.lift(&policy, fork_handlers::register)
    });
    let code = |lifted: &LiftReport| match () {
        () if lifted.lift.unlifted.is_some() => NOT_SEEN,
        () if !lifted.lift.unexpected.is_empty() => FAULT,
        () if lifted.lift.is_nothing() && lifted.lift.already_bytes == 0 => NOTHING,
        () if lifted.lift.is_complete() => OK,
        () => PARTIAL,
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { conclude(&call, lifted, &options, report, code) }
}

/// Moves everything that was lifted back to ordinary pages. See the header.
///
/// # Safety
/// As for [`pagelift_lift`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_restore(options: *const Options, report: *mut CReport) -> c_int {
    // SAFETY:
    // - the caller's promise.
    let Some(options) = (unsafe { read_options(options) }) else { return INVALID };
    let call = match Call::begin() {
        Ok(call) => call,
        Err(why) => return code_of(why),
    };
    let restored = call.with_objects_and_library(Library::restore);
    let code = |restored: &LiftReport| match () {
        () if restored.lift.unlifted.is_some() => NOT_SEEN,
        () if restored.not_restored.is_empty() => OK,
        () => PARTIAL,
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { conclude(&call, restored, &options, report, code) }
}

fn code_of(why: Unusable) -> c_int {
    match why {
        Unusable::Busy => BUSY,
        Unusable::NoMemory => NO_MEMORY,
    }
}

/// # Safety
/// `report` is NULL or points to as many bytes as its first field says.
unsafe fn conclude(
    call: &Call,
    done: Result<LiftReport, Unusable>,
    options: &Options,
    report: *mut CReport,
    code: impl FnOnce(&LiftReport) -> c_int,
) -> c_int {
    let done = match done {
        Ok(done) => done,
        Err(why) => return code_of(why),
    };
    let code = code(&done);
    if done.lift.considered_bytes != 0 || done.lift.unlifted.is_some() {
        options.log(call, &done.line());
    }
    done.details().iter().for_each(|line| options.log(call, line));
    // SAFETY:
    // - the caller's promise.
    unsafe { write_report(report, &done) };
    code
}

/// Reads what the kernel backs with huge pages now. See the header.
///
/// # Safety
/// `report` is NULL or sound as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_query(report: *mut CReport) -> c_int {
    let now = Call::begin().and_then(|call| call.with_objects_and_library(Library::covered_now));
    let CoveredNow { pool, transparent, pages, ranges } = match now {
        Ok(now) => now,
        Err(why) => return code_of(why),
    };
    let filled = CReport {
        covered_bytes: pool + transparent,
        hugetlb_bytes: pool,
        thp_bytes: transparent,
        huge_pages: pages,
        lifted_ranges: ranges as u64,
        ..empty_report()
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { put_report(report, filled) };
    OK
}

/// Collapses the memory that the program has allocated onto huge pages, in place. See the header.
///
/// # Safety
/// `report` is NULL or sound as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_collapse_heap(report: *mut CReport) -> c_int {
    let call = match Call::begin() {
        Ok(call) => call,
        Err(why) => return code_of(why),
    };
    let collapsed = match call.with_library(|_| crate::heap::collapse()) {
        Ok(Ok(collapsed)) => collapsed,
        Ok(Err(why)) => {
            // SAFETY:
            // - the caller's promise.
            unsafe { write_report(report, &LiftReport::nothing(why)) };
            return NOT_SEEN;
        }
        Err(why) => return code_of(why),
    };
    let filled = CReport {
        considered_bytes: collapsed.resident,
        covered_bytes: collapsed.huge,
        thp_bytes: collapsed.huge,
        microseconds: collapsed.microseconds,
        ..empty_report()
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { put_report(report, filled) };
    if collapsed.huge > collapsed.before { OK } else { NOTHING }
}

/// Puts memory that the program has mapped itself on huge pages, in place. See the header.
///
/// # Safety
/// `report` is NULL or sound as the header says. During the call no thread unmaps the range, maps over it or makes it writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pagelift_advise(address: *mut c_void, length: usize, report: *mut CReport) -> c_int {
    let Some(end) = (address as usize).checked_add(length) else { return INVALID };
    let range = AddressRange::new(Address(address as u64), Address(end as u64));
    let call = match Call::begin() {
        Ok(call) => call,
        Err(why) => return code_of(why),
    };
    let (filled, message, code) = match call.with_library(|_| crate::advise::advise(range)) {
        Ok(Ok(done)) => {
            let filled = CReport {
                considered_bytes: done.considered,
                covered_bytes: done.huge(),
                hugetlb_bytes: done.pool,
                thp_bytes: done.anonymous,
                file_bytes: done.of_files,
                advised_bytes: done.advised,
                microseconds: done.microseconds,
                ..empty_report()
            };
            let code = match done.huge() + done.advised {
                0 => NOTHING,
                _ if done.is_complete() => OK,
                _ => PARTIAL,
            };
            (filled, done.line(), code)
        }
        Ok(Err(Unadvised::NotMapped(why))) => (empty_report(), why, INVALID),
        Ok(Err(Unadvised::NotSeen(why))) => (empty_report(), why.to_owned(), NOT_SEEN),
        Err(why) => return code_of(why),
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { put_report(report, with_message(filled, &message)) };
    code
}

fn empty_report() -> CReport {
    CReport {
        size: size_of::<CReport>(),
        considered_bytes: 0,
        covered_bytes: 0,
        hugetlb_bytes: 0,
        thp_bytes: 0,
        advised_bytes: 0,
        made_resident_bytes: 0,
        huge_pages: 0,
        microseconds: 0,
        lifted_ranges: 0,
        refused_ranges: 0,
        message: [0; MESSAGE],
        file_bytes: 0,
    }
}

/// # Safety
/// `report` is NULL or points to as many bytes as its first field says.
unsafe fn write_report(report: *mut CReport, done: &LiftReport) {
    let filled = CReport {
        considered_bytes: done.lift.considered_bytes,
        covered_bytes: done.lift.covered_bytes,
        hugetlb_bytes: done.lift.covered_from(Source::Hugetlb),
        thp_bytes: done.lift.covered_from(Source::Thp),
        file_bytes: done.lift.covered_from(Source::File),
        advised_bytes: done.lift.advised_bytes,
        made_resident_bytes: done.lift.made_resident_bytes,
        huge_pages: done.pages(),
        microseconds: done.lift.lift_microseconds,
        lifted_ranges: done.lift.ranges.iter().filter(|range| range.source.is_some()).count() as u64,
        refused_ranges: (done.lift.refusals.len() + done.not_restored.len()) as u64,
        ..empty_report()
    };
    let message = match done.not_restored.first() {
        Some((object, why)) => alloc::format!("{object}: {why}"),
        None if done.lift.considered_bytes == 0 && done.lift.unlifted.is_none() => String::new(),
        None => done.line(),
    };
    // SAFETY:
    // - the caller's promise.
    unsafe { put_report(report, with_message(filled, &message)) };
}

/// Adds the message, cut between characters, with the end left in place.
fn with_message(mut filled: CReport, message: &str) -> CReport {
    let end = (0..MESSAGE).rev().find(|&end| message.is_char_boundary(end.min(message.len()))).unwrap_or(0);
    for (to, from) in filled.message.iter_mut().zip(message.bytes().take(end)) {
        *to = from as c_char;
    }
    filled.message[MESSAGE - 1] = 0;
    filled
}

/// # Safety
/// `report` is NULL or points to as many bytes as its first field says.
unsafe fn put_report(report: *mut CReport, mut filled: CReport) {
    if report.is_null() {
        return;
    }
    // SAFETY:
    // - the caller's promise.
    unsafe {
        let size = report.cast::<usize>().read();
        let known = size.min(size_of::<CReport>());
        if known < size_of::<usize>() {
            return;
        }
        filled.size = size;
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(&filled).cast::<u8>(), report.cast::<u8>(), known);
    }
}

/// The entry point of the older technique: the executable's code and data on huge pages of its own file, of the pool,
/// or on transparent ones. Returns the number of huge pages that they are on, by this call or an earlier one, 0 on
/// failure; the reason is passed to `logger` if it is not NULL.
///
/// # Safety
/// The logger is NULL or a function that takes a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn remap_text_and_data_to_huge_pages(logger: Option<PlainLogger>) -> usize {
    let tell = |why: &CStr| {
        if let Some(logger) = logger {
            // SAFETY:
            // - the caller's promise; the text lives during the call.
            unsafe { logger(why.as_ptr()) };
        }
    };
    let call = match Call::begin() {
        Ok(call) => call,
        Err(why) => {
            tell(text(code_of(why)));
            return 0;
        }
    };
    let policy = Policy {
        kinds: Kinds::of(&KINDS[..4]),
        objects: ObjectChoice::Executable,
        writable_pages: WritablePages::Hugetlb,
        ..Policy::default()
    };
    let lifted = call.with_objects_and_library(|library| library.lift_and_count(&policy, fork_handlers::register));
    let (pages, why) = match &lifted {
        Ok((report, pages)) => (*pages, (!report.lift.is_complete()).then(|| report.line())),
        Err(why) => {
            tell(text(code_of(*why)));
            return 0;
        }
    };
    if let Some(why) = why.and_then(|why| CString::new(why).ok()) {
        call.outside(|| tell(&why));
    }
    pages as usize
}
