//! The command line: arguments in, exit code out. One function per command below `cli/`. Knows no forge,
//! holds no job; what it prints goes to stdout when it was asked for and to stderr when it is news.

mod args;
mod artifacts;
mod cache;
mod check;
mod exec;
mod run;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::diag::logging;
use args::{Call, Command};

/// Wrong arguments (sysexits `EX_USAGE`).
const USAGE: u8 = 64;
/// Wrong configuration (sysexits `EX_CONFIG`).
const CONFIG: u8 = 78;

pub fn main() -> ExitCode {
    let mut rest = std::env::args_os().skip(1);
    // The job process comes first: it must call `setsid` before anything else happens (design §2).
    match rest.next().as_deref().and_then(OsStr::to_str) {
        Some("job") => return ExitCode::from(crate::job::main(Path::new(&rest.next().unwrap_or_default()))),
        Some("stage") => return ExitCode::from(crate::process::trampoline::main(rest)),
        // What stages call: no configuration, no log of ours.
        Some("artifacts-uploader") => return ExitCode::from(artifacts::uploader(rest)),
        Some("artifacts-downloader") => return ExitCode::from(artifacts::downloader(rest)),
        Some("cache-archiver") => return ExitCode::from(cache::archiver(rest)),
        Some("cache-extractor") => return ExitCode::from(cache::extractor(rest)),
        _ => {}
    }
    ExitCode::from(match args::parse(std::env::args_os().skip(1).collect::<Vec<OsString>>()) {
        Ok(call) => dispatch(call),
        Err(wrong) => {
            say(&format!("runner: {wrong}\nTry `runner --help`."));
            USAGE
        }
    })
}

fn dispatch(call: Call) -> u8 {
    logging::init(call.log_level, call.log_format);
    match call.command {
        Command::Help(topic) => {
            out(format_args!("{}", args::help(topic)));
            0
        }
        Command::Version => {
            out(format_args!("runner {} ({}/{})\n", env!("CARGO_PKG_VERSION"), std::env::consts::OS, args::arch()));
            0
        }
        Command::Run { working_directory, user } => run::run(call.config, working_directory, user),
        Command::CheckConfig => check::check(call.config),
        Command::Exec { files } => exec::exec(&files),
    }
}

/// What was asked for, on stdout. A reader that went away is no error.
fn out(text: fmt::Arguments<'_>) {
    let _ = std::io::stdout().lock().write_fmt(text);
}

/// A line for the person at the terminal, on stderr.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
