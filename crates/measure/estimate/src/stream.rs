//! Reads the trace as it comes.

use crate::EstimateError;
use crate::tlb_model::trace::{LONGEST_BLOCK, MAGIC, parse_block_head};
use std::io::{ErrorKind, Read};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// A trace that is being made.
pub struct Stream<'a, R> {
    from: R,
    interrupted: &'a dyn Fn() -> bool,
    bytes: Vec<u8>,
    begun: bool,
}

/// The next item.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The page of the program's first store: the first that comes.
    Begin(u64),
    /// Records of a thread.
    Block(u32, Vec<u64>),
    /// The program has ended.
    End,
    /// The user has ended the slice.
    Interrupted,
}

impl<'a, R: Read> Stream<'a, R> {
    /// A stream. Reads of `from` that time out give `interrupted` a chance.
    pub fn of(from: R, interrupted: &'a dyn Fn() -> bool) -> Self {
        Self { from, interrupted, bytes: vec![0; (LONGEST_BLOCK + 1) * WORD], begun: false }
    }

    /// Reads the next part.
    ///
    /// # Errors
    /// [`EstimateError::Form`] for input that is no trace, and errors of the kernel.
    pub fn next(&mut self) -> Result<Next, EstimateError> {
        if !self.begun {
            return Ok(match self.words(2)? {
                Ok(words) if words[0] == MAGIC => {
                    self.begun = true;
                    Next::Begin(words[1])
                }
                Ok(_) => return Err(EstimateError::Form),
                Err(end) => end,
            });
        }
        let head = match self.words(1)? {
            Ok(words) => words[0],
            Err(end) => return Ok(end),
        };
        let (cpu, count) = parse_block_head(head).ok_or(EstimateError::Form)?;
        Ok(match self.words(count)? {
            Ok(words) => Next::Block(cpu, words),
            Err(end) => end,
        })
    }

    /// Reads whole words. The inner error is the end.
    fn words(&mut self, count: usize) -> Result<Result<Vec<u64>, Next>, EstimateError> {
        let mut read = 0;
        while read < count * WORD {
            if (self.interrupted)() {
                return Ok(Err(Next::Interrupted));
            }
            match self.from.read(&mut self.bytes[read..count * WORD]) {
                Ok(0) => return Ok(Err(Next::End)),
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Err(Next::End)),
                Err(error)
                    if [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&error.kind()) => {
                }
                Err(error) => return Err(EstimateError::io("reading the trace")(error)),
            }
        }
        let words = self.bytes[..read].chunks_exact(WORD);
        Ok(Ok(words.map(|bytes| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlb_model::trace::block_head;

    fn read(words: &[u64], cut: usize) -> Result<Vec<Next>, EstimateError> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut stream = Stream::of(&bytes[..bytes.len() - cut], &|| false);
        let mut all = Vec::new();
        loop {
            match stream.next()? {
                Next::End => return Ok(all),
                next => all.push(next),
            }
        }
    }

    #[test]
    fn blocks_come_as_they_were_sent() {
        let words = [MAGIC, 9, block_head(3, 2), 5, 6, block_head(0, 0), block_head(1, 1), 7];
        let all = [Next::Begin(9), Next::Block(3, vec![5, 6]), Next::Block(0, vec![]), Next::Block(1, vec![7])];
        assert_eq!(read(&words, 0).unwrap(), all);
        // A program that was killed leaves half a block.
        assert_eq!(read(&words, 3).unwrap(), all[..3]);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        assert!(matches!(read(&[MAGIC + 1, 0], 0), Err(EstimateError::Form)));
        assert!(matches!(read(&[MAGIC, 0, u64::MAX], 0), Err(EstimateError::Form)));
    }
}
