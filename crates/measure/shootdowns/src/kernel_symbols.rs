//! Names of the kernel's functions, from `/proc/kallsyms`.

use linux::bounded::KERNEL_TEXT;
use std::fs::File;

/// Functions by address, lowest first.
#[derive(Clone, Debug, Default)]
pub struct KernelSymbols {
    functions: Vec<(u64, Box<str>)>,
}

impl KernelSymbols {
    /// Reads the names; empty if the kernel hides its addresses (`kernel.kptr_restrict`).
    pub fn read() -> Self {
        let bytes = File::open("/proc/kallsyms").and_then(|file| KERNEL_TEXT.read_rest(file)).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Parses lines of `ADDRESS TYPE NAME [MODULE]`; only functions are kept.
    pub fn parse(text: &str) -> Self {
        let function = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address != 0)?;
            let kind = words.next()?;
            let name = words.next().filter(|_| matches!(kind, "t" | "T" | "w" | "W"))?;
            Some((address, name.into()))
        };
        let mut functions: Vec<(u64, Box<str>)> = text.lines().filter_map(function).collect();
        functions.sort();
        Self { functions }
    }

    /// True if no name is known.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function that contains an address according to the table: the last that begins at or before it.
    pub fn name(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, _)| *start <= address);
        self.functions.get(after.checked_sub(1)?).map(|(_, name)| &**name)
    }

    /// The address of a function.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.functions.iter().find(|(_, found)| &**found == name).map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_by_the_function_before_them() {
        let text = "ffffffff81342490 t __pfx_flush_tlb_func\nffffffff813424a0 t flush_tlb_func\n\
                    ffffffff81342500 D some_data\nffffffffc0000000 t of_module [module]\n";
        let symbols = KernelSymbols::parse(text);
        assert_eq!(symbols.address("flush_tlb_func"), Some(0xffff_ffff_8134_24a0));
        assert_eq!(symbols.name(0xffff_ffff_8134_24f0), Some("flush_tlb_func"));
        assert_eq!(symbols.name(0xffff_ffff_8134_2489), None);
        assert_eq!(symbols.name(u64::MAX), Some("of_module"));
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let symbols = KernelSymbols::parse("0000000000000000 t flush_tlb_func\n\nnonsense\n");
        assert!(symbols.is_empty() && symbols.name(5).is_none());
    }
}
