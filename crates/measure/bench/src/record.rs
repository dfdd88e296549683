//! Keeps the record of an experiment, and reads one again.

use linux::bounded::BENCH_RECORD;
use measure::record::{Event, Header, MOST_BLOCKS, MOST_LINES, Record, RecordError};
use std::fs::File;
use std::io::{self, Write};

/// Reads a record, of bounded length.
///
/// # Errors
/// The kernel's, and `InvalidData` with the line if it is no such record.
pub fn read(file: &File) -> io::Result<Record> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    let bytes = BENCH_RECORD.read_rest(file)?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        let (found, needed) = ("it is no UTF-8".to_owned(), "a file of `pagelift bench -o`".to_owned());
        wrong(RecordError { line, found, needed })
    })?;
    Record::parse(text).map_err(wrong)
}

/// Keeps a record in memory and, if requested, in a file that contains each event as soon as it has happened.
pub(crate) struct Recorder {
    record: Record,
    file: Option<File>,
    /// Number of its blocks.
    blocks: usize,
    /// Length of the file.
    bytes: usize,
}

/// The reserve in a full record: its last block and its end.
const SPARE_LINES: usize = 1_000;
const SPARE_BYTES: usize = 8 << 20;

impl Recorder {
    pub(crate) fn new(header: Header, mut file: Option<File>) -> io::Result<Self> {
        let line = serde_json::to_string(&header)? + "\n";
        if let Some(file) = &mut file {
            file.write_all(line.as_bytes())?;
        }
        Ok(Self { record: Record { header, events: Vec::new() }, file, blocks: 0, bytes: line.len() })
    }

    pub(crate) fn add(&mut self, event: Event) -> io::Result<()> {
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&event)? + "\n";
            file.write_all(line.as_bytes())?;
            self.bytes += line.len();
        }
        self.blocks += usize::from(matches!(event, Event::Block(_)));
        self.record.events.push(event);
        Ok(())
    }

    /// True if no further block may be added: a longer record would not be read again.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks >= MOST_BLOCKS
            || self.record.events.len() + SPARE_LINES >= MOST_LINES
            || self.bytes + SPARE_BYTES >= BENCH_RECORD.bytes() as usize
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn finish(self) -> Record {
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use measure::record::{Design, Ended, Switch};
    use measure::toggle::Per;
    use std::fs;
    use std::path::Path;

    fn recorder_into(path: &Path) -> Recorder {
        let arms = vec!["thp".to_owned()];
        let header = Header::new(Design::Toggle, "server".to_owned(), arms, "commands".to_owned(), Per::CpuSecond, 3);
        Recorder::new(header, Some(File::create(path).unwrap())).unwrap()
    }

    #[test]
    fn what_is_kept_is_what_the_file_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut recorder = recorder_into(&path);
        recorder.add(Event::Switch(Switch { arm: Some(0), pause: 0.1, cpu: 0.2, covered: Some(3) })).unwrap();
        recorder.add(Event::End(Ended::TimeIsUp)).unwrap();
        assert_eq!(read(&File::open(&path).unwrap()).unwrap(), recorder.finish());
    }

    #[test]
    fn a_record_that_is_full_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        let mut recorder = recorder_into(&path);
        let why = "x".repeat(1 << 20);
        while !recorder.is_full() {
            recorder.add(Event::End(Ended::Failed(why.clone()))).unwrap();
        }
        assert!(recorder.record().events.len() > 50);
        assert_eq!(read(&File::open(&path).unwrap()).unwrap(), recorder.finish());
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        fs::write(&path, b"one\ntwo \xff\n").unwrap();
        let error = read(&File::open(&path).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().starts_with("line 2 is not one of `pagelift bench -o`: it is no UTF-8"), "{error}");
    }
}
