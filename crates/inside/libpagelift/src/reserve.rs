//! Memory that is mapped before a call begins, for what the call allocates when the kernel maps no more. Each
//! piece gets the lowest addresses with room for it. Large blocks grow by moving, as in mappings of their own.

/// Highest number of pieces at a time.
pub const MOST_PIECES: usize = 64;

/// All zero means without memory.
pub struct Reserve {
    start: usize,
    length: usize,
    /// The calls for which it is kept.
    pub users: usize,
    pieces: [(usize, usize); MOST_PIECES],
    count: usize,
}

impl Reserve {
    /// Uses this memory, which has no pieces yet, from now on.
    pub fn begin(&mut self, start: usize, length: usize) {
        (self.start, self.length, self.count) = (start, length, 0);
    }

    /// Its memory; `None` where it has none.
    pub fn memory(&self) -> Option<(usize, usize)> {
        (self.start != 0).then_some((self.start, self.length))
    }

    /// The start and the length of each piece.
    pub fn pieces(&self) -> &[(usize, usize)] {
        &self.pieces[..self.count]
    }

    /// Bytes without a piece.
    pub fn room(&self) -> usize {
        self.length - self.pieces().iter().map(|(_, length)| length).sum::<usize>()
    }

    /// Cuts a piece and returns its address; 0 if it fits nowhere.
    pub fn take(&mut self, length: usize) -> usize {
        let end = self.start + self.length;
        let is_free = |start: usize| {
            end - start >= length
                && self.pieces().iter().all(|(other, others)| start + length <= *other || other + others <= start)
        };
        let starts = self.pieces().iter().map(|(start, length)| start + length).chain([self.start]);
        let Some(start) = starts.filter(|&start| is_free(start)).min().filter(|_| self.count < MOST_PIECES) else {
            return 0;
        };
        self.pieces[self.count] = (start, length);
        self.count += 1;
        start
    }

    /// Takes back the piece that begins there and returns its length; `None` if there is none.
    pub fn give_back(&mut self, start: usize) -> Option<usize> {
        let index = self.pieces().iter().position(|(at, _)| *at == start)?;
        let (_, length) = self.pieces[index];
        self.count -= 1;
        self.pieces[index] = self.pieces[self.count];
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_their_room_is_used_again() {
        let mut reserve = Reserve { start: 0, length: 0, users: 0, pieces: [(0, 0); MOST_PIECES], count: 0 };
        assert_eq!((reserve.take(1), reserve.memory()), (0, None));
        reserve.begin(1000, 100);
        assert_eq!([reserve.take(40), reserve.take(40), reserve.take(40)], [1000, 1040, 0]);
        assert_eq!((reserve.give_back(1000), reserve.give_back(1000), reserve.room()), (Some(40), None, 60));
        assert_eq!([reserve.take(60), reserve.take(20), reserve.take(20), reserve.take(20)], [0, 1000, 1020, 1080]);
        assert_eq!((reserve.take(1), reserve.room()), (0, 0));
    }
}
