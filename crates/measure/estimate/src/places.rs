//! The contents at an address of the traced process; pure.

use address_space::{Address, AddressRange, AddressSpace, ElfImage, MappingName, PageSize};
use serde::Serialize;
use std::fmt;

/// The contents of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Code of an object.
    Text,
    /// Read-only data of an object.
    Rodata,
    /// Written data of an object.
    Data,
    /// Data of an object that no file holds.
    Bss,
    /// The area of brk(2).
    Heap,
    /// Private anonymous memory: memory of allocators, generated code, stacks of threads.
    Anonymous,
    /// The stack of the first thread.
    Stack,
    /// Files that are no objects, and shared memory.
    File,
    /// Not mapped any more when it was looked up.
    Unknown,
}

impl Kind {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 9] = [
        Self::Text,
        Self::Rodata,
        Self::Data,
        Self::Bss,
        Self::Heap,
        Self::Anonymous,
        Self::Stack,
        Self::File,
        Self::Unknown,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Rodata => "rodata",
            Self::Data => "data",
            Self::Bss => "bss",
            Self::Heap => "heap (brk)",
            Self::Anonymous => "anonymous",
            Self::Stack => "stack",
            Self::File => "files",
            Self::Unknown => "unknown",
        })
    }
}

/// An object as QEMU has mapped it.
#[derive(Clone, Debug)]
pub struct TracedObject {
    /// Path as maps shows it.
    pub path: String,
    /// The difference to the file's addresses (wrapping).
    pub bias: u64,
    /// The file's shape.
    pub image: ElfImage,
}

/// The contents at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPlace<'a> {
    /// The kind.
    pub kind: Kind,
    /// The object's path and the address in its file's terms.
    pub object: Option<(&'a str, u64)>,
    /// The anonymous mapping that holds it.
    pub anonymous: Option<AddressRange>,
}

/// The mappings and objects of the traced process at one moment.
#[derive(Debug, Default)]
pub struct Places {
    space: AddressSpace,
    objects: Vec<TracedObject>,
    base_page: Option<PageSize>,
    /// End of the first object, the executable: brk(2) begins there.
    end_of_executable: Option<Address>,
    stack: Option<Address>,
}

impl Places {
    /// The objects are found by the mappings of each file that hold its first segment. `stack` is an address on the stack
    /// of the first thread.
    pub fn new(
        space: AddressSpace,
        executable: &str,
        stack: Address,
        base_page: PageSize,
        mut image_of: impl FnMut(&str) -> Option<ElfImage>,
    ) -> Self {
        let mut objects: Vec<TracedObject> = Vec::new();
        for mapping in space.mappings().iter().filter(|mapping| !mapping.shared) {
            let Some(path) = mapping.path() else { continue };
            let Some(image) = image_of(path) else { continue };
            let Some(first) = image.segments.first() else { continue };
            if mapping.offset != first.offset & !(base_page.bytes() - 1) {
                continue;
            }
            let bias = mapping.range.start() - first.memory.start().align_down(base_page);
            // A file's next segment may begin in the page in which the one before ends.
            let is_inside =
                objects.iter().any(|o| o.path == path && o.extent(base_page).contains(mapping.range.start()));
            if !is_inside {
                objects.push(TracedObject { path: path.to_owned(), bias, image });
            }
        }
        let of_executable = objects.iter().find(|object| object.path == executable);
        let end_of_executable = of_executable.map(|object| object.extent(base_page).end());
        Self { space, objects, base_page: Some(base_page), end_of_executable, stack: Some(stack) }
    }

    /// True if the address is mapped.
    pub fn has(&self, address: Address) -> bool {
        self.space.find(address).is_some()
    }

    /// The contents at an address.
    pub fn at(&self, address: Address) -> MappedPlace<'_> {
        let none = MappedPlace { kind: Kind::Unknown, object: None, anonymous: None };
        let (Some(mapping), Some(base_page)) = (self.space.find(address), self.base_page) else { return none };
        let object = self.objects.iter().find(|object| object.extent(base_page).contains(address));
        if let Some(object) = object.filter(|object| mapping.path().is_none_or(|path| path == object.path)) {
            let in_file = address.0.wrapping_sub(object.bias);
            let kind = object.kind_at(in_file, base_page);
            return MappedPlace { kind, object: Some((&object.path, in_file)), anonymous: None };
        }
        if mapping.shared || !matches!(mapping.name, MappingName::Anonymous | MappingName::Named(_) | MappingName::Heap)
        {
            return MappedPlace { kind: Kind::File, ..none };
        }
        if self.stack.is_some_and(|stack| mapping.range.contains(stack)) {
            return MappedPlace { kind: Kind::Stack, ..none };
        }
        // The brk area and the end of bss are one mapping.
        let begins = mapping.range.start();
        let kind = match self.end_of_executable {
            Some(end) if begins <= end && end <= mapping.range.end() => Kind::Heap,
            _ => Kind::Anonymous,
        };
        let range = match self.end_of_executable.filter(|_| kind == Kind::Heap) {
            Some(end) => AddressRange::new(end.max(begins), mapping.range.end()),
            None => mapping.range,
        };
        MappedPlace { kind, object: None, anonymous: Some(range) }
    }
}

impl TracedObject {
    fn extent(&self, base_page: PageSize) -> AddressRange {
        self.image.extent().shifted(self.bias).widened(base_page)
    }

    /// A page that two segments share belongs to the later one, which is mapped over the earlier.
    fn kind_at(&self, address: u64, base_page: PageSize) -> Kind {
        let holds = |range: AddressRange| range.widened(base_page).contains(Address(address));
        let Some(segment) = self.image.segments.iter().rev().find(|segment| holds(segment.memory)) else {
            return Kind::Rodata;
        };
        match (segment.protection.execute, segment.protection.write) {
            (true, _) => Kind::Text,
            (false, false) => Kind::Rodata,
            (false, true) if holds(segment.file_memory()) => Kind::Data,
            (false, true) => Kind::Bss,
        }
    }
}

#[cfg(test)]
mod tests;
