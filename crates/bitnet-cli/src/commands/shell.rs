//! Completion scripts and the manual page.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{args::Cli, error::CliError};

pub fn completions(shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bitnet", &mut script);
    io::stdout().lock().write_all(&script).map_err(CliError::Stdout)
}

/// `bitnet man`: one page for the program and all its commands.
pub fn man() -> Result<(), CliError> {
    let mut program = Cli::command();
    program.build();
    let mut page = Vec::new();
    let render = |page: &mut Vec<u8>| {
        clap_mangen::Man::new(program.clone()).render(page)?;
        for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
            let name = command.get_name().to_uppercase();
            writeln!(page, ".SH \"COMMAND {name}\"")?;
            let man = clap_mangen::Man::new(command.clone());
            man.render_description_section(page)?;
            man.render_options_section(page)?;
        }
        Ok(())
    };
    render(&mut page).map_err(CliError::Stdout)?;
    io::stdout().lock().write_all(&page).map_err(CliError::Stdout)
}
