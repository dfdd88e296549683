//! The configuration of the agent: `*.toml` files of one folder, read in the order of their names.
//!
//! [`Configuration::read`] is a pure function from texts to settings and rules; [`read_folder`] reads the texts.

mod configuration;
mod error;
mod folder;
mod listen;
mod pattern;
mod quantity;
mod quiet;
#[cfg(test)]
mod tests;
mod written;

pub use configuration::{
    Allowance, Conditions, ConfigFile, Configuration, EnvCondition, Rule, Settings, UNIT_KINDS, intersection,
};
pub use error::{ConfigError, FilePosition};
pub use folder::{Stamp, read_folder};
pub use listen::Listen;
pub use pattern::Pattern;
pub use quantity::{Share, Size, Time};
pub use quiet::{QuietHours, WeekTime};
pub use written::{Keep, Mode};
