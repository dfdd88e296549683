//! Feeds the trace to the TLBs of each core, once for each variant.

use crate::page_sizes::{PageSizes, VARIANTS};
use crate::places::Kind;
use crate::process_maps::ProcessMaps;
use crate::result::{PagesOf, Side, Slice, Trace, Variant, WalksOfKind};
use crate::stream::{Next, Stream};
use crate::tlb_model::trace::TraceStep;
use crate::tlb_model::{Geometry, Lookup, Side as TlbSide, Tlbs, Translation};
use crate::{Estimate, EstimateError, Qemu, Request};
use address_space::{Address, AddressRange};
use linux::pages::base_page;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;

/// Pages whose places are remembered, by the lowest bits of their numbers.
const REMEMBERED: usize = 1 << 16;

/// Kinds, as indexes of counters.
const KINDS: usize = Kind::ALL.len();

/// A page and its translation in each variant.
#[derive(Clone, Copy)]
struct Located {
    page: u64,
    kind: Kind,
    translations: [Translation; VARIANTS],
}

/// The simulation.
pub struct Simulation {
    cpu: Geometry,
    cores: Option<u32>,
    executable: PathBuf,
    sizes: PageSizes,
    maps: ProcessMaps,
    located: Vec<Option<Located>>,
    /// The TLBs of each core.
    tlbs: BTreeMap<u32, [Tlbs; VARIANTS]>,
    threads: BTreeSet<u32>,
    counts: Counts,
    instructions: u64,
}

/// The counts for each variant.
#[derive(Clone, Debug, Default)]
struct Counts {
    misses: [[u64; 2]; VARIANTS],
    walks: [[[u64; 2]; KINDS]; VARIANTS],
}

/// The end of the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All requested instructions.
    Full,
    /// Before that.
    Early,
}

impl Simulation {
    /// A simulation with empty TLBs.
    pub fn new(request: &Request<'_>, maps: ProcessMaps) -> Self {
        let sizes = PageSizes {
            base: base_page(),
            planned: request.planned.clone(),
            today: request.today.clone(),
            transparent: request.transparent,
        };
        Self {
            cpu: request.cpu.clone(),
            cores: request.cores,
            executable: request.program.to_owned(),
            sizes,
            maps,
            located: vec![None; REMEMBERED],
            tlbs: BTreeMap::new(),
            threads: BTreeSet::new(),
            counts: Counts::default(),
            instructions: 0,
        }
    }

    /// Instructions simulated, the warming up included.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Reads the trace until the slice is full or the trace ends.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn run<R: Read>(&mut self, stream: &mut Stream<'_, R>, slice: &Slice) -> Result<Ended, EstimateError> {
        let mut warming = slice.warm_up > 0;
        loop {
            match stream.next()? {
                Next::Begin(page) => {
                    self.maps.begin(&self.executable, Address(page * self.sizes.base.bytes()));
                }
                Next::Block(thread, words) => {
                    self.block(thread, words, slice.warm_up + slice.instructions, &mut warming, slice.warm_up);
                    if self.instructions >= slice.warm_up + slice.instructions {
                        return Ok(Ended::Full);
                    }
                }
                Next::End | Next::Interrupted => return Ok(Ended::Early),
            }
        }
    }

    fn block(&mut self, thread: u32, words: Vec<u64>, last: u64, warming: &mut bool, warm_up: u64) {
        let cpu = &self.cpu;
        let new = || std::array::from_fn(|_| Tlbs::new(cpu));
        // Taken out while it is used, so that the rest of the simulation is free.
        let core = self.cores.map_or(thread, |cores| thread % cores);
        let mut tlbs = self.tlbs.remove(&core).unwrap_or_else(new);
        self.threads.insert(thread);
        let mut words = words.into_iter();
        while let Some(record) = TraceStep::take(&mut words) {
            match record {
                TraceStep::Data { page } => self.access(&mut tlbs, TlbSide::Data, page),
                TraceStep::Code { page, executed } => {
                    self.instructions += executed;
                    if *warming && self.instructions >= warm_up {
                        *warming = false;
                        self.counts = Counts::default();
                    }
                    if self.instructions >= last {
                        break;
                    }
                    self.access(&mut tlbs, TlbSide::Instruction, page);
                }
                TraceStep::Changed { page, pages } => self.change(page, pages),
            }
        }
        self.tlbs.insert(core, tlbs);
    }

    fn access(&mut self, tlbs: &mut [Tlbs; VARIANTS], side: TlbSide, page: u64) {
        let Located { kind, translations, .. } = self.locate(page);
        let at = usize::from(side == TlbSide::Data);
        for (variant, (tlbs, translation)) in tlbs.iter_mut().zip(translations).enumerate() {
            let outcome = tlbs.access(side, translation);
            if outcome != Lookup::First {
                self.counts.misses[variant][at] += 1;
                self.counts.walks[variant][kind as usize][at] += u64::from(outcome == Lookup::Walk);
            }
        }
    }

    fn locate(&mut self, page: u64) -> Located {
        let slot = page as usize % REMEMBERED;
        if let Some(located) = self.located[slot].filter(|located| located.page == page) {
            return located;
        }
        let address = Address(page.wrapping_mul(self.sizes.base.bytes()));
        let place = self.maps.at(address, self.sizes.base);
        let located = Located { page, kind: place.kind, translations: self.sizes.pages(address, &place) };
        // An address that is unmapped now may be mapped again.
        self.located[slot] = (located.kind != Kind::Unknown).then_some(located);
        located
    }

    fn change(&mut self, page: u64, pages: u64) {
        let base = self.sizes.base.bytes();
        self.maps.change(AddressRange::sized(Address(page.wrapping_mul(base)), pages.saturating_mul(base)));
        let is_inside = |located: &Located| located.page.wrapping_sub(page) < pages;
        if pages < REMEMBERED as u64 {
            for page in page..page.saturating_add(pages) {
                self.located[page as usize % REMEMBERED].take_if(|located| is_inside(located));
            }
        } else {
            for slot in &mut self.located {
                slot.take_if(|located| is_inside(located));
            }
        }
    }

    /// The result.
    pub fn into_estimate(self, request: &Request<'_>, qemu: &Qemu, ended: Ended) -> Estimate {
        let pages = [PagesOf::Plain, PagesOf::Lifted, PagesOf::LiftedWithHeap];
        let variants = pages.into_iter().enumerate().map(|(variant, pages)| self.counts.variant(variant, pages));
        let variants = variants.collect();
        Estimate {
            format: "pagelift-estimate",
            version: 1,
            command: request.words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            trace: Trace {
                tool: qemu.version().to_owned(),
                slice: request.slice,
                instructions: self.instructions - request.slice.warm_up,
                threads: self.threads.len(),
                cores: self.cores,
                ended_early: ended == Ended::Early,
            },
            planned_bytes: self.sizes.planned.huge.iter().map(|(range, _)| range.len()).sum(),
            variants,
            cpu: self.cpu,
        }
    }
}

impl Counts {
    fn variant(&self, variant: usize, pages: PagesOf) -> Variant {
        let walks = &self.walks[variant];
        let side =
            |at: usize| Side { misses: self.misses[variant][at], walks: walks.iter().map(|of_kind| of_kind[at]).sum() };
        let of_kind = |kind: Kind| {
            let [code, data] = walks[kind as usize];
            WalksOfKind { kind, code, data }
        };
        let shown = Kind::ALL.into_iter().map(of_kind).filter(|walks| walks.code + walks.data > 0);
        Variant { pages, code: side(0), data: side(1), walks: shown.collect() }
    }
}
