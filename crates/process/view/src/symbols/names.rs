//! Makes symbol names readable.

use crate::printable;
use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use std::fmt;

/// Maximum length of a name, in bytes; one template can make a name of megabytes.
const LONGEST_NAME: usize = 1024;
/// Most bytes that a demangler may write: a name with such arguments is shown without them.
const LONGEST_DEMANGLED: usize = 65536;
/// Bytes that a demangler writes in about the time that counts as one byte of memory. With the bound of all names of a process,
/// 2 GiB are written at most.
const WRITTEN_PER_BYTE: usize = 16;
/// Mangled names longer than this are not demangled.
const LONGEST_MANGLED: usize = 16384;

/// A name that a reader understands.
pub(crate) struct Readable {
    /// The name, on one line and of bounded length.
    pub name: String,
    /// Bytes of a budget of memory for the time that demangling took: many names of a few bytes can have long arguments.
    pub work: u64,
}

/// The name demangled (Rust and C++; parameters left away, as perf does).
pub(crate) fn readable(name: &[u8]) -> Readable {
    let Ok(text) = std::str::from_utf8(name) else {
        return Readable { name: short(&String::from_utf8_lossy(name)), work: 0 };
    };
    // A version behind the name (`memcpy@@GLIBC_2.14`) is no part of the mangling.
    let (mangled, version) = text.split_at(text.find('@').unwrap_or(text.len()));
    let mut written = Bounded(String::new());
    let is_whole = demangle(mangled, &mut written).is_some();
    let work = (written.0.len() / WRITTEN_PER_BYTE) as u64;
    let name = match written.0 {
        name if is_whole && name.len() > LONGEST_NAME => short(&(without_arguments(&name) + version)),
        name if is_whole => short(&(name + version)),
        _ => short(text),
    };
    Readable { name, work }
}

fn demangle(name: &str, into: &mut Bounded) -> Option<()> {
    if name.len() > LONGEST_MANGLED {
        return None;
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return fmt::write(into, format_args!("{rust:#}")).ok();
    }
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = Symbol::new_with_options(name, &ParseOptions::default()).ok()?;
    symbol.structured_demangle(into, &DemangleOptions::new().no_params().no_return_type()).ok()
}

/// The name with `<...>` for the arguments of its templates.
pub fn without_arguments(name: &str) -> String {
    let (mut bare, mut depth) = (String::new(), 0u32);
    for (at, sign) in name.char_indices() {
        let before = &name[..at];
        let is_operator = before.ends_with("operator") || before.ends_with("operator<") || before.ends_with('-');
        match (sign, depth) {
            ('<', _) if !is_operator => {
                bare += if depth == 0 { "<..." } else { "" };
                depth += 1;
            }
            ('>', 1..) if !is_operator => {
                depth -= 1;
                bare += if depth == 0 { ">" } else { "" };
            }
            (_, 0) => bare.push(sign),
            _ => {}
        }
    }
    bare
}

/// On one line and cut.
fn short(name: &str) -> String {
    printable(&name.chars().take(LONGEST_NAME).collect::<String>())
}

/// Takes text up to a bound, then makes the demangler stop.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(name: &[u8]) -> String {
        readable(name).name
    }

    #[test]
    fn every_language_is_demangled() {
        for (mangled, name) in [
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN3foo3barILi5EEEvi", "foo::bar<5>"),
            ("main.main", "main.main"),
            ("memcpy@@GLIBC_2.14", "memcpy@@GLIBC_2.14"),
            ("_Znwm@GLIBCXX_3.4", "operator new@GLIBCXX_3.4"),
            ("bad\nname", "bad?name"),
        ] {
            assert_eq!(name_of(mangled.as_bytes()), name);
        }
    }

    #[test]
    fn a_long_name_is_shown_without_arguments() {
        let grow = "_ZN4llvm12DenseMapBaseINS_8DenseMapIPNS_10BasicBlockENS1_IS3_N12_GLOBAL__N_18PredInfoENS_12DenseMapInfo\
                    IS3_vEENS_6detail12DenseMapPairIS3_S5_EEEES7_NS9_IS3_SB_EEEES3_SB_S7_SC_E4growEj";
        assert_eq!(name_of(grow.as_bytes()), "llvm::DenseMapBase<...>::grow");
        // Its demangled form has more bytes than a name may have.
        assert!(readable(grow.as_bytes()).work >= (LONGEST_NAME / WRITTEN_PER_BYTE) as u64);
        assert_eq!(readable(b"main").work, 0);
    }

    #[test]
    fn operators_are_no_arguments() {
        for (name, bare) in [
            ("a<b<c>, d>::operator<", "a<...>::operator<"),
            ("operator<< <int>", "operator<< <...>"),
            ("a::operator<=>", "a::operator<=>"),
            ("a<&b::operator->>::c", "a<...>::c"),
            ("<a as b<c>>::d", "<...>::d"),
            ("main", "main"),
        ] {
            assert_eq!(without_arguments(name), bare);
        }
    }

    #[test]
    fn names_that_explode_stay_bounded() {
        // Each substitution doubles the one before.
        let mut mangled = String::from("_Z1fISt4pairIiiE");
        (0..64).for_each(|i| mangled.push_str(&format!("St4pairIS{i}_S{i}_E")));
        mangled.push('E');
        assert!(name_of(mangled.as_bytes()).len() <= LONGEST_NAME);
        assert!(name_of(&[b'x'; 1 << 20]).len() <= LONGEST_NAME);
    }
}
