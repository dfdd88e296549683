//! The C library's functions that report the heap's memory and return it: malloc_trim(3), mallinfo(3), malloc_info(3),
//! malloc_stats(3). In the C library's words, arenas are the main heap and large blocks are mapped chunks.

use crate::c_library::OfCLibrary;
use crate::large::Large;
use crate::passive;
use crate::small::{SmallUsage, trim};
use crate::start::is_acting;
use crate::sys::set_errno;
use crate::text::Text;
use crate::{ACCOUNT, SHARED};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::Ordering::Relaxed;
use libc::{FILE, mallinfo as Info, mallinfo2 as Info2};

/// Bytes and counts of the heap.
struct Usage {
    small: SmallUsage,
    large_count: usize,
    large_held: usize,
    large_kept: usize,
}

impl Usage {
    fn now() -> Self {
        // SAFETY:
        // - the work only acts on its argument.
        let large_count = unsafe { SHARED.with(|large| large.count_held()) };
        Self {
            small: SmallUsage::now(),
            large_count,
            large_held: ACCOUNT.large_held.load(Relaxed) as usize,
            large_kept: ACCOUNT.large_kept.load(Relaxed) as usize,
        }
    }

    /// Bytes of arenas that hold memory.
    fn arenas(&self) -> usize {
        self.small.pages + self.small.dirty
    }

    fn free(&self) -> usize {
        self.arenas().saturating_sub(self.small.live)
    }

    fn info(&self) -> Info2 {
        Info2 {
            arena: self.arenas(),
            ordblks: self.small.free_blocks,
            smblks: 0,
            hblks: self.large_count,
            hblkhd: self.large_held,
            usmblks: 0,
            fsmblks: 0,
            uordblks: self.small.live,
            fordblks: self.free(),
            keepcost: self.small.dirty + self.large_kept,
        }
    }
}

/// malloc_trim(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_trim(kept: usize) -> c_int {
    if is_acting() {
        // SAFETY:
        // - the work only acts on its argument.
        let large = unsafe { SHARED.with(Large::trim) };
        return c_int::from(trim(kept) || large);
    }
    // SAFETY:
    // - in every library this name is a function of this type.
    passive::TRIM
        .get()
        .map_or(0, |found| unsafe { transmute::<*mut c_void, extern "C" fn(usize) -> c_int>(found)(kept) })
}

const NO_INFO: Info2 = Info2 {
    arena: 0,
    ordblks: 0,
    smblks: 0,
    hblks: 0,
    hblkhd: 0,
    usmblks: 0,
    fsmblks: 0,
    uordblks: 0,
    fordblks: 0,
    keepcost: 0,
};

/// mallinfo2(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo2() -> Info2 {
    if is_acting() {
        return Usage::now().info();
    }
    // SAFETY:
    // - in every library this name is a function of this type.
    passive::INFO2.get().map_or(NO_INFO, |found| unsafe { transmute::<*mut c_void, extern "C" fn() -> Info2>(found)() })
}

/// mallinfo(3), whose numbers have no room for more than 2 GiB: larger ones are given as the largest.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallinfo() -> Info {
    let found = if is_acting() { None } else { passive::INFO.get() };
    if let Some(found) = found {
        // SAFETY:
        // - in every library this name is a function of this type.
        return unsafe { transmute::<*mut c_void, extern "C" fn() -> Info>(found)() };
    }
    let info = if is_acting() { Usage::now().info() } else { NO_INFO };
    let number = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    Info {
        arena: number(info.arena),
        ordblks: number(info.ordblks),
        smblks: number(info.smblks),
        hblks: number(info.hblks),
        hblkhd: number(info.hblkhd),
        usmblks: number(info.usmblks),
        fsmblks: number(info.fsmblks),
        uordblks: number(info.uordblks),
        fordblks: number(info.fordblks),
        keepcost: number(info.keepcost),
    }
}

/// malloc_info(3). The C library's largest sizes so far are not known here and are left out.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut FILE) -> c_int {
    if !is_acting() {
        type Function = unsafe extern "C" fn(c_int, *mut FILE) -> c_int;
        // SAFETY:
        // - in every library this name is a function of this type; the caller's promise.
        return passive::WRITE_INFO
            .get()
            .map_or(-1, |found| unsafe { transmute::<*mut c_void, Function>(found)(options, stream) });
    }
    if options != 0 {
        return libc::EINVAL;
    }
    static PUT: OfCLibrary = OfCLibrary::new(c"fputs");
    let Some(put) = PUT.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let text = Usage::now().as_xml();
    // SAFETY:
    // - the C library's function of this type; the text ends with NUL, and the stream is the caller's.
    let written = unsafe {
        let put = transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, *mut FILE) -> c_int>(put);
        put(text.as_path().map_or(c"".as_ptr(), CStr::as_ptr), stream)
    };
    if written < 0 { -1 } else { 0 }
}

impl Usage {
    /// In the form of the GNU C library, with one heap.
    fn as_xml(&self) -> Text {
        let (free, blocks, arenas) = (self.free(), self.small.free_blocks, self.arenas());
        let totals = |text: &mut Text| {
            text.add(format_args!("<total type=\"fast\" count=\"0\" size=\"0\"/>\n"));
            text.add(format_args!("<total type=\"rest\" count=\"{blocks}\" size=\"{free}\"/>\n"));
        };
        let sizes = |text: &mut Text| {
            text.add(format_args!("<system type=\"current\" size=\"{arenas}\"/>\n"));
            text.add(format_args!("<aspace type=\"total\" size=\"{arenas}\"/>\n"));
        };
        let mut text = Text::of(format_args!("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n"));
        totals(&mut text);
        sizes(&mut text);
        text.add(format_args!("</heap>\n"));
        totals(&mut text);
        let (count, held) = (self.large_count, self.large_held);
        text.add(format_args!("<total type=\"mmap\" count=\"{count}\" size=\"{held}\"/>\n"));
        sizes(&mut text);
        text.add(format_args!("</malloc>\n"));
        text
    }
}

/// malloc_stats(3).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_stats() {
    if !is_acting() {
        if let Some(found) = passive::STATS.get() {
            // SAFETY:
            // - in every library this name is a function of this type.
            unsafe { transmute::<*mut c_void, extern "C" fn()>(found)() };
        }
        return;
    }
    let usage = Usage::now();
    let (arenas, live, held) = (usage.arenas(), usage.small.live, usage.large_held);
    let mut text = Text::of(format_args!("Arena 0:\n"));
    text.add(format_args!("system bytes     = {arenas:>10}\nin use bytes     = {live:>10}\n"));
    let (all, used) = (arenas + held, live + held);
    text.add(format_args!("Total (incl. mmap):\nsystem bytes     = {all:>10}\nin use bytes     = {used:>10}"));
    text.say();
}
