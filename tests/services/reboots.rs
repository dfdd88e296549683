//! Services of a Debian in a virtual machine that boots again.

mod machine;
mod properties;

use std::process::ExitCode;
use test_support::{main_of_machines, test_case};

fn main() -> ExitCode {
    main_of_machines(vec![test_case("services_survive_a_reboot", machine::needs(), machine::reboots)])
}
