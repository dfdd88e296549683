//! The form of kept facts: a head with the build that wrote them, then a record for each file. A record is its length,
//! the file's identity, the kind of reading, and texts, each with a letter in front that identifies the fact, and a NUL
//! at the end.

use super::Key;
use crate::elf::{ElfFacts, Reads};
use process_view::FileIdentity;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Begins a file, with the number of the form.
const MAGIC: &[u8] = b"pagelift heap facts 1\n";
/// Bytes of an identity.
const IDENTITY: usize = 7 * 8;
/// Bytes of a record in front of its texts: length, identity, kind of reading.
const HEAD: usize = 4 + IDENTITY + 1;

/// The contents of a file with these records.
pub(super) fn file(build: &FileIdentity, records: &[u8]) -> Vec<u8> {
    [MAGIC, &identity(build), records].concat()
}

/// Ranges of the texts of each record in a file; `None` for a file of another form or build, and a damaged one.
pub(super) fn places(file: &[u8], build: &FileIdentity) -> Option<HashMap<Key, Range<usize>>> {
    let records = file.strip_prefix(MAGIC)?.strip_prefix(&identity(build)[..])?;
    let mut places = HashMap::new();
    let mut at = file.len() - records.len();
    while at < file.len() {
        let head = file.get(at..at.checked_add(HEAD)?)?;
        let (length, rest) = head.split_first_chunk::<4>()?;
        let (of_file, reads) = rest.split_first_chunk::<IDENTITY>()?;
        let end = (at + HEAD).checked_add(u32::from_le_bytes(*length) as usize).filter(|&end| end <= file.len())?;
        places.insert((identity_of(of_file), reads_of(reads[0])?), at + HEAD..end);
        at = end;
    }
    Some(places)
}

/// Adds a record of a file's facts.
pub(super) fn add(records: &mut Vec<u8>, key: &Key, facts: &ElfFacts) {
    add_encoded(records, key, &encoded(facts));
}

/// Adds a record with these texts.
pub(super) fn add_encoded(records: &mut Vec<u8>, (of_file, reads): &Key, texts: &[u8]) {
    let (Some(number), Ok(length)) = (number_of(*reads), u32::try_from(texts.len())) else { return };
    records.extend(length.to_le_bytes());
    records.extend(identity(of_file));
    records.push(number);
    records.extend(texts);
}

/// Commands need versions of runtimes, starts do not.
fn number_of(reads: Reads) -> Option<u8> {
    match reads {
        Reads::Executable => Some(0),
        Reads::Library => Some(1),
        Reads::Versions { .. } => None,
    }
}

fn reads_of(number: u8) -> Option<Reads> {
    [Reads::Executable, Reads::Library].into_iter().find(|&reads| number_of(reads) == Some(number))
}

fn identity(of_file: &FileIdentity) -> [u8; IDENTITY] {
    let FileIdentity { device, inode, size, modified, changed } = *of_file;
    let times = [modified.0, modified.1, changed.0, changed.1].map(i64::cast_unsigned);
    let mut bytes = [0; IDENTITY];
    for (place, word) in bytes.chunks_exact_mut(8).zip([device, inode, size].into_iter().chain(times)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn identity_of(bytes: &[u8; IDENTITY]) -> FileIdentity {
    let word = |index: usize| {
        let word = bytes.chunks_exact(8).nth(index).and_then(|word| word.first_chunk::<8>());
        u64::from_le_bytes(word.copied().unwrap_or_default())
    };
    let time = |index: usize| (word(index).cast_signed(), word(index + 1).cast_signed());
    FileIdentity { device: word(0), inode: word(1), size: word(2), modified: time(3), changed: time(5) }
}

/// The texts of a file's facts. A text holds no NUL, since the reader ends it there.
fn encoded(facts: &ElfFacts) -> Vec<u8> {
    let ElfFacts {
        path: _,
        machine,
        interpreter,
        is_dynamic,
        needed,
        rpath,
        runpath,
        soname,
        defines,
        exports,
        imports,
        is_go,
        go_version,
        jvm_version,
        glibc_minor,
        needed_glibc_minor,
        jemalloc_version,
        jemalloc_variable,
        gperftools_version,
        v8_version,
        settings,
    } = facts;
    let mut texts = Vec::new();
    let mut add = |letter: u8, text: &str| {
        texts.push(letter);
        texts.extend(text.as_bytes());
        texts.push(0);
    };
    add(b'm', &machine.to_string());
    let flags = [(b'd', is_dynamic), (b'g', is_go)];
    flags.iter().filter(|(_, is_set)| **is_set).for_each(|(letter, _)| add(*letter, ""));
    let numbers = [(b'c', glibc_minor), (b'C', needed_glibc_minor)];
    numbers.iter().for_each(|(letter, number)| number.iter().for_each(|number| add(*letter, &number.to_string())));
    let single = [
        (b'i', interpreter),
        (b'r', rpath),
        (b'u', runpath),
        (b's', soname),
        (b'G', go_version),
        (b'J', jvm_version),
        (b'j', jemalloc_version),
        (b'v', jemalloc_variable),
        (b't', gperftools_version),
        (b'8', v8_version),
    ];
    single.iter().for_each(|(letter, text)| text.iter().for_each(|text| add(*letter, text)));
    needed.iter().for_each(|name| add(b'n', name));
    let sets = [(b'D', defines), (b'X', exports), (b'I', imports), (b'S', settings)];
    sets.iter().for_each(|(letter, names)| names.iter().for_each(|name| add(*letter, name)));
    texts
}

/// The facts in these texts; `None` for texts that [`encoded`] does not write.
pub(super) fn facts(texts: &[u8]) -> Option<ElfFacts> {
    let mut facts = ElfFacts::default();
    for text in std::str::from_utf8(texts).ok()?.strip_suffix('\0')?.split('\0') {
        let letter = *text.as_bytes().first()?;
        let text = text.get(1..)?;
        let add = |set: &mut BTreeSet<String>| {
            set.insert(text.to_owned());
        };
        let single = || Some(text.to_owned());
        match letter {
            b'm' => facts.machine = text.parse().ok()?,
            b'd' => facts.is_dynamic = true,
            b'g' => facts.is_go = true,
            b'c' => facts.glibc_minor = Some(text.parse().ok()?),
            b'C' => facts.needed_glibc_minor = Some(text.parse().ok()?),
            b'i' => facts.interpreter = single(),
            b'r' => facts.rpath = single(),
            b'u' => facts.runpath = single(),
            b's' => facts.soname = single(),
            b'G' => facts.go_version = single(),
            b'J' => facts.jvm_version = single(),
            b'j' => facts.jemalloc_version = single(),
            b'v' => facts.jemalloc_variable = single(),
            b't' => facts.gperftools_version = single(),
            b'8' => facts.v8_version = single(),
            b'n' => facts.needed.push(text.to_owned()),
            b'D' => add(&mut facts.defines),
            b'X' => add(&mut facts.exports),
            b'I' => add(&mut facts.imports),
            b'S' => add(&mut facts.settings),
            _ => return None,
        }
    }
    Some(facts)
}
