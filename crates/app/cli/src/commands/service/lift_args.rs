//! The options of `pagelift enable` that say how a service is lifted.

use crate::arguments::heap::HeapArgs;
use crate::arguments::policy::{PolicyArgs, choice};
use crate::arguments::via::ViaArg;
use clap::Args;
use options::Prepare;

/// Options that `pagelift run` has too.
#[derive(Args, Clone)]
pub struct LiftArgs {
    /// What to lift and from where.
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Whether files are brought into huge folios of the page cache before they are lifted from there.
    #[arg(long, value_parser = choice::<Prepare>(), default_value = "auto")]
    pub prepare: Prepare,
    /// What concerns the heap.
    #[command(flatten)]
    pub heap: HeapArgs,
    /// Have the program's allocator keep what is freed, by its own settings.
    #[arg(long)]
    pub calm: bool,
    /// How the program is lifted [default: what works in the service's sandbox].
    #[arg(long, value_enum)]
    pub via: Option<ViaArg>,
    /// Follow all descendants and lift only programs of these names, separated by commas; for services that start by a
    /// script or a shell [default: of a shell, the large programs that its own words execute].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// With --only, follow the descendants of lifted programs too.
    #[arg(long, requires = "only")]
    pub follow_lifted: bool,
    /// Have the service fail where anything planned could not be lifted.
    #[arg(long)]
    pub require: bool,
    /// Have nothing written to the service's journal.
    #[arg(short, long)]
    pub quiet: bool,
    /// Have the journal say what became of each range.
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
}
