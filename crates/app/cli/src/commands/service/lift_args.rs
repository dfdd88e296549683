//! The options of `pagelift enable` about the lift of a service.

use crate::arguments::heap::HeapArgs;
use crate::arguments::policy::{PolicyArgs, choice};
use crate::arguments::via::ViaArg;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use options::Prepare;

/// Options that `pagelift run` has too.
#[derive(Args, Clone)]
pub struct LiftArgs {
    /// The kinds to lift and the sources of pages.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// When to bring files into huge folios of the page cache before they are lifted from there.
    #[arg(long, value_parser = choice::<Prepare>(), default_value = "auto")]
    pub prepare: Prepare,
    /// Options of the heap.
    #[command(flatten)]
    pub heap: HeapArgs,
    /// Make the program's allocator keep freed memory, by the allocator's own settings.
    #[arg(long)]
    pub calm: bool,
    /// Method of the lift [default: one that works in the service's sandbox].
    #[arg(long, value_enum)]
    pub via: Option<ViaArg>,
    /// Follow all descendants and lift only programs with these names, separated by commas; for services that a script
    /// or a shell starts [default for a shell: the large programs that its command line executes].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub only: Vec<String>,
    /// With --only, follow the descendants of lifted programs too.
    #[arg(long, requires = "only")]
    pub follow_lifted: bool,
    /// Make the service fail if any part of the plan cannot be lifted.
    #[arg(long)]
    pub require: bool,
    /// Write nothing to the service's journal.
    #[arg(short, long)]
    pub quiet: bool,
    /// Write the result for each range to the service's journal.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}
