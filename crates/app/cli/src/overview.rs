//! The screen of `pagelift --help`: all commands, in groups.

/// A template for clap. Its list is written here, since clap cannot group subcommands; a test compares it with the definition.
/// It fits a terminal of 80 columns.
pub const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

Lift     run         Start a program with its code and data on huge pages
         attach      Lift a running program
         detach      Undo a lift while the program runs
         inspect     Show the plan of a lift, and the reason for each refusal
Measure  bench       Measure whether a lift pays, with a confidence interval
         report      Make an HTML or Markdown page from the records of bench
         stat        Count page walks, page faults and the pages in use
         estimate    Simulate a program's TLB misses, plain and lifted
         probe       Measure the cost of address translation on this machine
         shootdowns  Show who sends TLB shootdowns, their cost and the cure
         demo        Run a bundled program plain and lifted, and compare
Prepare  image       Manage images: huge-page copies that all processes share
         cache       Keep files in huge folios of the page cache
         align       Align a program's segments so that huge pages can map it
         pool        Show, plan and change the pools of huge pages
Operate  doctor      Report what prevents huge pages here, with the fixes
         status      Show which memory is on huge pages now
         enable      Lift a systemd service at each start, by a drop-in file
         disable     Remove the drop-in file of enable
         enabled     List the services that are lifted at each start
         agent       Lift the programs of a machine by rules
         perf-map    Write symbols of lifted code for perf to /tmp/perf-PID.map

Help for a command: pagelift help COMMAND. The version: pagelift --version.
Lines are folded to fit the terminal, or to COLUMNS. Otherwise they stay whole.
";

#[cfg(test)]
mod tests {
    use super::TEMPLATE;
    use crate::definition::Cli;
    use clap::CommandFactory;

    /// The commands of the list with their descriptions, by name.
    fn listed() -> Vec<(String, String)> {
        let rows = TEMPLATE.lines().skip_while(|line| !line.starts_with("Lift ")).take_while(|line| !line.is_empty());
        let mut commands: Vec<_> = rows
            .map(|row| {
                let (name, about) = row[9..].split_once(' ').unwrap();
                (name.to_owned(), about.trim_start().to_owned())
            })
            .collect();
        commands.sort();
        commands
    }

    #[test]
    fn lists_each_command_with_its_description() {
        let cli = Cli::command();
        let visible = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let mut defined: Vec<_> =
            visible.map(|command| (command.get_name().to_owned(), command.get_about().unwrap().to_string())).collect();
        defined.sort();
        assert_eq!(listed(), defined);
    }

    #[test]
    fn fits_eighty_columns() {
        let long: Vec<_> = TEMPLATE.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
    }
}
